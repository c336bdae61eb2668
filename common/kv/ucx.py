"""The only module that touches UCXX: one worker, its listener and links, on one asyncio loop.

Theory of operation: UCXX's own asyncio layer spins while a request is pending, so the low-level API
is driven here. The worker's epoll descriptor is watched by the loop; when it fires, the worker is
progressed until it can be armed again, and every request that has completed calls its `done` with
None or an error. Nothing runs while nothing happens. All calls belong to the loop's thread.

A buffer given to `send` or `receive` is the transport's until its `done` was called: cancelling is
not known to UCX tag receives, and a freed buffer would be written later. A `Link` is lost once and
for good; what was pending on it is called back with an error. An endpoint may have failed before
its link exists: a peer that dies while it connects. Closing an endpoint that UCXX has closed after
an error crashes the process, hence the look at `alive`; its non-blocking close leaves receives
pending for ever, its blocking one cancels them and takes 0.1 ms.
UCX leaves shared memory out of endpoints with error handling unless it is told that those
transports report a dead peer too; they do (a killed peer fails what is pending within 10 ms), and
a handoff inside one host then takes half the CPU that it takes over loopback TCP.
UCX's segments of 8 KiB are small for it: TCP costs half the CPU with 512 KiB. Shared memory costs a
sixth (0.33 s/GB of both sides against 1.9) with segments of 60 KiB and a ring that holds a window
of messages: on a full ring the sender spins. 64 KiB and more are cut short: UCX counts a segment
in 16 bits. The posix ring is small since containers have 64 MiB of /dev/shm; UCX takes sysv where
it can. The environment goes before what is set here.
UCX hooks into mmap and munmap, behind a lock that a fork of a busy process may inherit held: the
child then hangs where it opens UCX. So importing this module loads no UCX; `Ucx.start` does, in the
process that uses it. A fork also shares the worker's epoll instance: were its copy destroyed by the
child's collector, the parent would abort at its own. So `close` destroys what it made, then and
there, and leaves nothing for a collector.
Source: FACTS on UCXX 0.52; ucp_worker_arm(3) for the order progress, arm, wait.
"""

from __future__ import annotations

import asyncio
import functools
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import BatonError, Code
from common.kv.lanes import lanes_of

os.environ.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
os.environ.setdefault("UCX_SYSV_ERROR_HANDLING", "y")
os.environ.setdefault("UCX_POSIX_ERROR_HANDLING", "y")
os.environ.setdefault("UCX_TCP_TX_SEG_SIZE", "512k")
os.environ.setdefault("UCX_TCP_RX_SEG_SIZE", "512k")
os.environ.setdefault("UCX_SYSV_SEG_SIZE", "60k")
os.environ.setdefault("UCX_SYSV_FIFO_SIZE", "512")
os.environ.setdefault("UCX_SYSV_RX_BUFS_GROW", "544")
os.environ.setdefault("UCX_POSIX_SEG_SIZE", "60k")
os.environ.setdefault("UCX_POSIX_FIFO_SIZE", "128")
os.environ.setdefault("UCX_POSIX_RX_BUFS_GROW", "136")

Buffer = NDArray[np.uint8]
Done = Callable[[str | None], None]

PUMPS = 64
CLOSE_NS = 500_000_000
HANDSHAKE = struct.Struct("<8sQ")
HANDSHAKE_MAGIC = b"baton-kv"
DATA_TAG = 1 << 63


@functools.cache
def _ucx() -> Any:
    from ucxx._lib import libucxx

    return libucxx


@functools.cache
def _array() -> Any:
    from ucxx._lib.arr import Array

    return Array


def data_tag(transfer: int, index: int, index_bits: int) -> int:
    """Data messages have the top bit; control tags never do."""
    return DATA_TAG | ((transfer << index_bits) | index) & (DATA_TAG - 1)


class Link:
    """One endpoint. `on_lost` is called once, from the loop, when it can no longer be used."""

    def __init__(self, owner: Ucx, endpoint: Any) -> None:
        self.on_lost: Callable[[], None] | None = None
        self.lost = False
        self.receive_tag = int.from_bytes(os.urandom(8), "little") >> 1
        self.send_tag = 0
        self._owner = owner
        self._endpoint = endpoint
        owner.keep(self)
        try:
            endpoint.set_close_callback(owner.soon, (self._drop,))
        except RuntimeError:
            owner.soon(self._drop)

    def open(self, done: Done) -> None:
        """Exchanges control tags with the other side, which does the same."""
        mine = np.frombuffer(HANDSHAKE.pack(HANDSHAKE_MAGIC, self.receive_tag), np.uint8).copy()
        theirs = np.zeros(HANDSHAKE.size, np.uint8)

        def received(error: str | None) -> None:
            if error is None:
                magic, self.send_tag = HANDSHAKE.unpack(theirs.tobytes())
                if magic != HANDSHAKE_MAGIC or self.send_tag >= DATA_TAG:
                    error = "the other side is not a Baton KV listener"
            done(error)

        self._post(lambda: self._endpoint.stream_recv(_array()(theirs)), theirs, received)
        self._post(lambda: self._endpoint.stream_send(_array()(mine)), mine, _ignore)

    def send(self, buffer: Buffer, tag: int, done: Done) -> None:
        _check(buffer)
        self._post(
            lambda: self._endpoint.tag_send(_array()(buffer), _ucx().UCXXTag(tag)), buffer, done
        )

    def receive(self, buffer: Buffer, tag: int, done: Done) -> None:
        """A shorter message is accepted by UCX: the content must say its length."""
        _check(buffer)
        if not buffer.flags.writeable:
            raise ValueError("a receive needs a writable buffer")
        self._post(
            lambda: self._endpoint.tag_recv(_array()(buffer), _ucx().UCXXTag(tag)), buffer, done
        )

    def push(self) -> None:
        """Has what was sent begin to leave now: this thread may copy for longer than the wire has
        to do."""
        if not self.lost:
            self._owner.push()

    def lanes(self) -> tuple[str, ...]:
        """`transport/device` of each way UCX may use to the other side; empty once lost."""
        return () if self.lost else lanes_of(self._endpoint.handle)

    def close(self) -> None:
        """Idempotent. What is pending here fails; the other side learns of it."""
        if not self.lost:
            if self._endpoint.alive:
                self._endpoint.close_blocking(CLOSE_NS, 1)
            self._drop()

    def close_later(self, seconds: float) -> None:
        """Leaves what was just sent the time to arrive: closing tells the other side nothing."""
        self._owner.later(seconds, self.close)

    def _post(self, start: Callable[[], Any], buffer: Buffer, done: Done) -> None:
        if self.lost:
            self._owner.soon(done, "the connection is lost")
            return
        try:
            request = start()
        except _ucx().UCXError as error:
            self._owner.soon(done, _sentence(error))
            self._owner.soon(self._drop)
            return
        self._owner.track(request, buffer, done)

    def _drop(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._endpoint = None
        self._owner.forget(self)
        if self.on_lost is not None:
            self._owner.soon(self.on_lost)


class Ucx:
    """One UCX worker. `start` and everything after it run on one event loop's thread."""

    def __init__(
        self,
        transports: str,
        on_accept: Callable[[Link], None],
        *,
        interfaces: str = "",
        rails: int = 1,
    ) -> None:
        """As in `[kv]`; `interfaces` empty = all."""
        self._config = {"TLS": transports}
        self._config |= {"NET_DEVICES": interfaces} if interfaces else {}
        self._config |= {f"MAX_{kind}_RAILS": str(rails) for kind in ("RNDV", "EAGER")}
        self._on_accept = on_accept
        self._inflight: list[tuple[Any, Buffer, Done]] = []
        self._kicked = False
        self._closed = False
        self._listener: Any = None
        self._links: set[Link] = set()

    def start(self) -> None:
        """Raises BatonError(CONFIG_INVALID) when UCX refuses the transports."""
        self._loop = asyncio.get_running_loop()
        try:
            self._context = _ucx().UCXContext(self._config)
            self._worker = _ucx().UCXWorker(
                self._context, enable_delayed_submission=False, enable_python_future=False
            )
            self._worker.init_blocking_progress_mode()
        except _ucx().UCXError as error:
            raise BatonError(
                Code.CONFIG_INVALID,
                f"kv.transports, kv.interfaces: UCX cannot use {self._config}: {_sentence(error)}",
            ) from error
        self._descriptor = self._worker.epoll_file_descriptor
        self._loop.add_reader(self._descriptor, self._pump)
        self.kick()

    def resources(self) -> tuple[str, ...]:
        """`transport/device` of all that UCX may use with this configuration."""
        lines = str(self._context.info).splitlines()
        found = (line.rsplit("--", 1)[1].strip() for line in lines if "resource" in line)
        return tuple(dict.fromkeys(found))

    def listen(self, port: int) -> int:
        """Accepts links on all addresses; returns the port. Raises BatonError(CONFIG_INVALID)."""
        try:
            self._listener = _ucx().UCXListener.create(
                self._worker, port, self._accepted, deliver_endpoint=True
            )
        except _ucx().UCXError as error:
            raise BatonError(
                Code.CONFIG_INVALID, f"kv.port: cannot listen on port {port}: {_sentence(error)}"
            ) from error
        self.kick()
        return int(self._listener.port)

    def connect(self, host: str, port: int) -> Link:
        """Starts to connect; a failure shows as a lost link, maybe seconds later."""
        try:
            endpoint = _ucx().UCXEndpoint.create(self._worker, host, port, True)
        except _ucx().UCXError as error:
            raise BatonError(
                Code.KV_TRANSFER_FAILED, f"cannot connect to {host}:{port}: {_sentence(error)}"
            ) from error
        self.kick()
        return Link(self, endpoint)

    def close(self) -> None:
        """Closes all links, stops delivering and destroys the worker, buffers after it."""
        if self._closed:
            return
        self._listener = None
        for link in list(self._links):
            link.close()
        for _ in range(PUMPS):
            self._worker.progress()
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        buffers = [buffer for _, buffer, _ in self._inflight]
        self._inflight.clear()
        self._worker = self._context = None
        buffers.clear()

    def keep(self, link: Link) -> None:
        self._links.add(link)

    def forget(self, link: Link) -> None:
        self._links.discard(link)
        self.kick()

    def soon(self, call: Callable[..., None], *args: object) -> None:
        self._loop.call_soon(call, *args)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    def track(self, request: Any, buffer: Buffer, done: Done) -> None:
        self._inflight.append((request, buffer, done))
        self.kick()

    def kick(self) -> None:
        """Have the worker progressed soon: something was posted."""
        if not self._kicked and not self._closed:
            self._kicked = True
            self._loop.call_soon(self._pump)

    def push(self) -> None:
        """Progress that calls nobody back: `_pump` does."""
        if not self._closed:
            self._worker.progress()

    @property
    def inflight(self) -> int:
        return len(self._inflight)

    def _accepted(self, endpoint: Any) -> None:
        self.soon(lambda: self._on_accept(Link(self, endpoint)))

    def _pump(self) -> None:
        self._kicked = False
        for _ in range(PUMPS):
            if self._closed:
                return
            self._worker.progress()
            self._complete()
            if self._worker.arm():
                return
        self.kick()

    def _complete(self) -> None:
        finished = [entry for entry in self._inflight if entry[0].completed]
        if not finished:
            return
        self._inflight = [entry for entry in self._inflight if not entry[0].completed]
        for request, _, done in finished:
            try:
                request.check_error()
            except _ucx().UCXError as error:
                done(_sentence(error))
            else:
                done(None)


def _check(buffer: Buffer) -> None:
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
        raise ValueError("UCX needs a flat contiguous uint8 buffer")


def _sentence(error: Exception) -> str:
    return str(error) or type(error).__name__


def _ignore(error: str | None) -> None:
    """Its failure shows elsewhere: the link is lost."""

"""The only module that touches UCXX: one UCX worker, its listener and links, on one asyncio loop.

Theory of operation: UCXX's own asyncio layer spins while a request is pending, so this module
drives the low-level API. The loop watches the UCX worker's epoll descriptor. When it fires, the
worker is progressed until it can be armed again, and every completed request calls its `done` with
None or an error. An idle worker runs no code. All calls belong to the loop's thread.

*Buffers and links.* A buffer given to `send` or `receive` belongs to the transport until `done` is
called: UCX cannot cancel a tag receive, and would write to a freed buffer later. A `UcxLink` is
lost once and for good, and what was pending on it is called back with an error. An endpoint may
fail before its link exists, when the peer dies while it connects. UCX never completes what is
posted on a failed endpoint, so `alive` is asked first. It crashes when a peer in this host dies
while it connects and something waits to be sent to it, so the side that was connected to sends
nothing before it has received something. Closing an endpoint that UCXX has closed after an error
crashes the process, so `close` checks `alive` first. UCXX's non-blocking close leaves receives
pending for ever; its blocking one cancels them and takes 0.1 ms.

*Shared memory.* UCX leaves shared memory out of endpoints with error handling unless it is told
that those transports report a dead peer too. They do (a killed peer fails what is pending within 10
ms), and a handoff inside one host then takes half the CPU that it takes over loopback TCP.

*Cards.* A buffer may be on a GPU: a torch tensor, of which UCX reads the address through
`__cuda_array_interface__`. Whoever sends one has waited until it is complete.

*Segments.* UCX's segments of 8 KiB are small for KV: TCP costs half the CPU with 512 KiB. Shared
memory costs a sixth (0.33 s/GB of both sides against 1.9) with segments of 60 KiB and a ring that
holds a window of messages, because the sender spins on a full ring. Segments of 64 KiB and more are
cut short: UCX keeps their length in 16 bits. The posix ring is small because containers have 64 MiB
of /dev/shm; UCX takes sysv where it can. Variables that the environment sets are left as they are.

*Forks.* UCX hooks into mmap and munmap behind a lock that a fork of a busy process may inherit
held; the child then hangs where it opens UCX. So importing this module loads no UCX, and
`UcxWorker.start` does, in the process that uses it. A fork also shares the worker's epoll instance:
if the child's garbage collector destroyed its copy, the parent would abort at its own. So `close`
destroys what it made at once and leaves nothing to a collector.

Sources: docs/vllm-and-ucx.md, "UCXX"; ucp_worker_arm(3) for the order progress, arm, wait.
"""

from __future__ import annotations

import asyncio
import functools
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from common.errors import BatonError, Code
from common.kv.layout import Payload
from common.kv.transport.chosen_transports import lanes_of, remote_of

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

Buffer = Payload
Done = Callable[[str | None], None]

PUMPS = 64
PUMP_S = 0.002
"""After so many, or so long, other calls of the loop get their turn, whatever there is to do."""
CLOSE_NS = 500_000_000
LINK_GREETING_BYTES = 48
HANDSHAKE = struct.Struct(f"<8sQ{LINK_GREETING_BYTES}s")
HANDSHAKE_MAGIC = b"baton-k2"
"""Its last byte is the version of this handshake and of the control frames after it."""
DATA_TAG, PAYLOAD_TAG = 1 << 63, 1 << 62


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
    return DATA_TAG | ((transfer << index_bits) | index) & (PAYLOAD_TAG - 1)


def payload_tag(transfer: int, index: int, index_bits: int) -> int:
    """Of a payload that follows its header as a message of its own."""
    return PAYLOAD_TAG | data_tag(transfer, index, index_bits)


class UcxLink:
    """One endpoint. `on_lost` is called once, from the loop, when it can no longer be used."""

    def __init__(self, owner: UcxWorker, endpoint: Any, *, accepted: bool) -> None:
        """`accepted`: the other side connected."""
        self.on_lost: Callable[[], None] | None = None
        self.lost = False
        self.receive_tag = int.from_bytes(os.urandom(8), "little") >> 1
        self.send_tag = 0
        #: What the other side said as this link opened.
        self.remote_greeting = b""
        self._owner = owner
        self._endpoint = endpoint
        self._accepted = accepted
        owner.add_link(self)
        try:
            endpoint.set_close_callback(owner.call_soon, (self._drop,))
        except RuntimeError:
            owner.call_soon(self._drop)

    def open(self, done: Done, greeting: bytes = bytes(LINK_GREETING_BYTES)) -> None:
        """Exchanges control tags and greetings of `LINK_GREETING_BYTES` with the other side, which
        does the same. The side that connected speaks first."""
        packed = HANDSHAKE.pack(HANDSHAKE_MAGIC, self.receive_tag, greeting)
        mine = np.frombuffer(packed, np.uint8).copy()
        theirs = np.zeros(HANDSHAKE.size, np.uint8)

        def greet() -> None:
            self._post(lambda: self._endpoint.stream_send(_array()(mine)), mine, _ignore)

        def received(error: str | None) -> None:
            if error is None:
                magic, self.send_tag, self.remote_greeting = HANDSHAKE.unpack(theirs.tobytes())
                if magic != HANDSHAKE_MAGIC or self.send_tag >= DATA_TAG:
                    error = "the other side is not a Baton worker that speaks this version of KV"
                elif self._accepted:
                    greet()
            done(error)

        self._post(lambda: self._endpoint.stream_recv(_array()(theirs)), theirs, received)
        if not self._accepted:
            greet()

    def send(self, buffer: Buffer, tag: int, done: Done) -> None:
        _check(buffer)
        self._post(
            lambda: self._endpoint.tag_send(_seen(buffer), _ucx().UCXXTag(tag)), buffer, done
        )

    def receive(self, buffer: Buffer, tag: int, done: Done) -> None:
        """UCX accepts a shorter message too, so the content must tell its length."""
        _check(buffer)
        if isinstance(buffer, np.ndarray) and not buffer.flags.writeable:
            raise ValueError("a receive needs a writable buffer")
        self._post(
            lambda: self._endpoint.tag_recv(_seen(buffer), _ucx().UCXXTag(tag)), buffer, done
        )

    def progress(self) -> None:
        """Starts the transfer of what was sent, because this thread may copy for longer than the
        wire is busy."""
        if not self.lost:
            self._owner.progress()

    def lanes(self) -> tuple[str, ...]:
        """What UCX may use to the other side, each as `transport/device`; empty once lost."""
        return () if self._failed() else lanes_of(self._endpoint.handle)

    def remote(self) -> tuple[str, int]:
        """Address and port of the other side; `("", 0)` once lost, or where UCX does not tell."""
        return ("", 0) if self._failed() else remote_of(self._endpoint.handle)

    def close(self) -> None:
        """Idempotent. What is pending here fails; the other side learns of it."""
        if not self.lost:
            if self._endpoint.alive:
                self._endpoint.close_blocking(CLOSE_NS, 1)
            self._drop()

    def close_later(self, seconds: float) -> None:
        """Closes later, so that what was just sent arrives: closing flushes nothing."""
        self._owner.call_later(seconds, self.close)

    def _failed(self) -> bool:
        """The link is lost, or will be as soon as the loop gets to it."""
        return self.lost or not self._endpoint.alive

    def _post(self, start: Callable[[], Any], buffer: Buffer, done: Done) -> None:
        if self._failed():
            self._owner.call_soon(done, "the connection is lost")
            self._owner.call_soon(self._drop)
            return
        try:
            request = start()
        except _ucx().UCXError as error:
            self._owner.call_soon(done, _text_of(error))
            self._owner.call_soon(self._drop)
            return
        self._owner.track(request, buffer, done)

    def _drop(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._endpoint = None
        self._owner.remove_link(self)
        if self.on_lost is not None:
            self._owner.call_soon(self.on_lost)


class UcxWorker:
    """One UCX worker. `start` and everything after it run on one event loop's thread."""

    def __init__(
        self,
        transports: str,
        on_accept: Callable[[UcxLink], None],
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
        self._progress_scheduled = False
        self._closed = False
        self._listener: Any = None
        self._links: set[UcxLink] = set()
        #: Called after UCX has been progressed, while something is in flight.
        self.on_progress: Callable[[], None] | None = None

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
                f"kv.transports, kv.interfaces: UCX cannot use {self._config}: {_text_of(error)}",
            ) from error
        self._descriptor = self._worker.epoll_file_descriptor
        self._loop.add_reader(self._descriptor, self._pump)
        self.schedule_progress()

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
                Code.CONFIG_INVALID, f"kv.port: cannot listen on port {port}: {_text_of(error)}"
            ) from error
        self.schedule_progress()
        return int(self._listener.port)

    def connect(self, host: str, port: int) -> UcxLink:
        """Starts to connect; a failure shows as a lost link, maybe seconds later."""
        try:
            endpoint = _ucx().UCXEndpoint.create(self._worker, host, port, True)
        except _ucx().UCXError as error:
            raise BatonError(
                Code.KV_TRANSFER_FAILED, f"cannot connect to {host}:{port}: {_text_of(error)}"
            ) from error
        self.schedule_progress()
        return UcxLink(self, endpoint, accepted=False)

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

    def add_link(self, link: UcxLink) -> None:
        self._links.add(link)

    def remove_link(self, link: UcxLink) -> None:
        self._links.discard(link)
        self.schedule_progress()

    def call_soon(self, call: Callable[..., None], *args: object) -> None:
        self._loop.call_soon(call, *args)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_later(seconds, call)

    def track(self, request: Any, buffer: Buffer, done: Done) -> None:
        self._inflight.append((request, buffer, done))
        self.schedule_progress()

    def schedule_progress(self) -> None:
        """Have the worker progressed soon: something was posted."""
        if not self._progress_scheduled and not self._closed:
            self._progress_scheduled = True
            self._loop.call_soon(self._pump)

    def progress(self) -> None:
        """Progresses without calling back what has completed; `_pump` does that."""
        if not self._closed:
            self._worker.progress()

    @property
    def inflight(self) -> int:
        return len(self._inflight)

    def _accepted(self, endpoint: Any) -> None:
        self.call_soon(lambda: self._on_accept(UcxLink(self, endpoint, accepted=True)))

    def _pump(self) -> None:
        self._progress_scheduled = False
        until = self._loop.time() + PUMP_S
        for _ in range(PUMPS):
            if self._closed:
                return
            self._worker.progress()
            self._complete()
            if self.on_progress is not None:
                self.on_progress()
            if self._worker.arm():
                return
            if self._loop.time() >= until:
                break
        self.schedule_progress()

    def _complete(self) -> None:
        finished = [entry for entry in self._inflight if entry[0].completed]
        if not finished:
            return
        self._inflight = [entry for entry in self._inflight if not entry[0].completed]
        for request, _, done in finished:
            try:
                request.check_error()
            except _ucx().UCXError as error:
                done(_text_of(error))
            else:
                done(None)


def _seen(buffer: Buffer) -> Any:
    """As UCXX takes it."""
    if isinstance(buffer, np.ndarray) or buffer.is_cuda:
        return _array()(buffer)
    return _array()(buffer.numpy())


def _check(buffer: Buffer) -> None:
    if isinstance(buffer, np.ndarray):
        fits = buffer.dtype == np.uint8 and buffer.flags.c_contiguous
    else:
        fits = buffer.element_size() == 1 and buffer.is_contiguous()
    if not fits or buffer.ndim != 1:
        raise ValueError("UCX needs a flat contiguous uint8 buffer")


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _ignore(error: str | None) -> None:
    """Its failure shows elsewhere: the link is lost."""

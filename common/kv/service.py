"""The KV thread: one per engine process, owner of UCX, staging and every handoff on this side.

Theory of operation: the engine's thread calls the methods of `KvService`; each becomes a call on
the KV thread's loop and never waits, but `withdraw`, which waits for one block copy at most. What
ended is collected with `drain`. The daemon hears of it too, over the side channel, and may release
tickets there. The thread sleeps when nothing is in flight: a timer runs only while something can
expire. An unexpected error ends the service; the next call of the engine raises it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from common.config import KvConfig
from common.endpoints import KV_SIDE
from common.errors import BatonError, Code, WireError
from common.kv.control import Channel, Heard, Identity
from common.kv.handoff.desk import TOMBSTONES, Desk, Key
from common.kv.handoff.receiver import Wanted
from common.kv.incoming import Incoming
from common.kv.layout import KvMemory
from common.kv.lease import Tombstones
from common.kv.messages import DaemonToKv, KvConnect, KvDone, KvListening, KvToDaemon
from common.kv.outgoing import Outgoing
from common.kv.plan import Shape, message_blocks
from common.kv.staging import Staging
from common.kv.ucx import Link, Ucx
from common.messages import KvReport, Ticket
from common.sockets import Socket
from common.wire import Decoder, encode

TICK_S = 0.05
WINDOW = 4
START_S = 20.0
STOP_S = 3.0
SIDE_BACKLOG = 4096


class KvService:
    """`side_address`: where the daemon binds the side channel; empty when the daemon is this very
    process. `on_ended` is called, on the KV thread, when `drain` has something new."""

    def __init__(
        self,
        identity: Identity,
        config: KvConfig,
        memory: KvMemory,
        side_address: str = "",
        on_ended: Callable[[], None] | None = None,
    ) -> None:
        self._identity = identity
        self._config = config
        self._memory = memory
        self._side_address = side_address
        self._on_ended = on_ended
        self._ended: deque[KvDone] = deque()
        self._news = threading.Event()
        self._generations: Tombstones[Key, int] = Tombstones(TOMBSTONES)
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._core: _Core | None = None

    def start(self) -> str:
        """Returns the listener's `host:port`. Raises BatonError when UCX cannot be set up."""
        started: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._main, args=(started,), name="baton-kv", daemon=True
        )
        self._thread.start()
        try:
            result = started.get(timeout=START_S)
        except queue.Empty:
            raise BatonError(Code.ENGINE_FAILED, "the KV thread did not start in time") from None
        if isinstance(result, BatonError):
            raise result
        if isinstance(result, BaseException):
            raise BatonError(Code.ENGINE_FAILED, f"the KV thread failed: {result}") from result
        return result

    def offer(self, ticket: Ticket, blocks: int) -> None:
        """P: the prompt of `blocks` blocks will be computed here. Ends once as `send`."""
        self._call(lambda core: core.outgoing.offer(ticket, blocks, core.now()))

    def progress(self, key: Key, block_ids: Sequence[int], computed: int) -> None:
        """P: the first `computed` of these blocks of the prompt hold KV."""
        ids, generation = list(block_ids), self._generations.get(key) or 0
        self._call(lambda core: core.outgoing.progress(key, ids, computed, generation))

    def withdraw(self, key: Key) -> None:
        """P: the engine takes the blocks back now; after this returns none is read."""
        if self._core is not None:
            self._generations.bury(key, self._core.outgoing.withdraw(key))
        self.progress(key, [], 0)

    def fetch(self, ticket: Ticket, first_block: int, block_ids: Sequence[int]) -> None:
        """D: bring blocks [first_block, ...) of the ticket's prompt to these blocks. Ends once as
        `receive`, within the load timeout."""
        ids = list(block_ids)
        self._call(lambda core: core.fetch(ticket, first_block, ids))

    def connect(self, kv_address: str) -> None:
        """D: have a connection to this P before it is needed: a first one costs UCX 0.1-0.3 s."""
        self._call(lambda core: core.incoming.connect(kv_address))

    def release(self, key: Key, reason: str) -> None:
        """Either side: the handoff is over. What it held ends; idempotent."""
        self._call(lambda core: core.release(key, reason))

    def drain(self) -> list[KvDone]:
        """What ended since the last call, each handoff once."""
        if self._failure is not None:
            raise BatonError(
                Code.ENGINE_FAILED, f"the KV thread failed: {self._failure}"
            ) from self._failure
        self._news.clear()
        ended: list[KvDone] = []
        with contextlib.suppress(IndexError):
            while True:
                ended.append(self._ended.popleft())
        return ended

    def wait_end(self, seconds: float) -> None:
        """Returns when a handoff has ended that `drain` has not told, or the time is over."""
        self._news.wait(seconds)

    def stop(self) -> None:
        """Idempotent; waits a moment for the thread."""
        core, thread = self._core, self._thread
        if core is not None:
            with contextlib.suppress(RuntimeError):
                core.loop.call_soon_threadsafe(core.stopped.set)
        if thread is not None:
            thread.join(STOP_S)

    def _call(self, act: Callable[[_Core], None]) -> None:
        core = self._core
        if core is None or self._failure is not None:
            raise BatonError(Code.ENGINE_FAILED, f"the KV thread is gone: {self._failure}")
        core.loop.call_soon_threadsafe(core.act, act)

    def _main(self, started: queue.SimpleQueue[str | BaseException]) -> None:
        try:
            asyncio.run(self._run(started))
        except BaseException as error:  # noqa: BLE001 - any end of the thread is reported
            self._failure = error
            started.put(error)

    async def _run(self, started: queue.SimpleQueue[str | BaseException]) -> None:
        core = _Core(self._identity, self._config, self._memory, self._side_address, self._note_end)
        address = core.start()
        core.loop.set_exception_handler(self._failed)
        self._core = core
        started.put(address)
        try:
            await core.stopped.wait()
        finally:
            core.close()
            await asyncio.sleep(0)
            core.ucx.close()

    def _note_end(self, done: KvDone) -> None:
        self._ended.append(done)
        self._news.set()
        if self._on_ended is not None:
            self._on_ended()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        loop.default_exception_handler(context)
        self._failure = error if isinstance(error, BaseException) else RuntimeError(str(context))


class _Core:
    """What lives on the KV thread."""

    def __init__(
        self,
        identity: Identity,
        config: KvConfig,
        memory: KvMemory,
        side_address: str,
        on_end: Callable[[KvDone], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self._config = config
        self._identity = identity
        self._on_end = on_end
        geometry = memory.geometry
        self._message_blocks = message_blocks(config.message_bytes, geometry.block_bytes)
        payload = self._message_blocks * geometry.block_bytes
        total = config.staging_mib << 20
        shape = Shape(geometry.layers, geometry.block_bytes)
        self.ucx = Ucx(
            config.transports,
            self._accepted,
            interfaces=config.interfaces,
            rails=config.rails,
        )
        self.outgoing = Outgoing(
            Desk(shape, payload, config.lease_ms),
            memory,
            Staging(payload, total),
            lambda *end: self._end("send", *end),
        )
        self.incoming = Incoming(
            identity,
            memory,
            Staging(payload, total),
            self._open,
            lambda *end: self._end("receive", *end),
            self.now,
        )
        self._accepted_channels: dict[int, Channel] = {}
        self._next_peer = 1
        self._ticking = False
        self._side = _Side(side_address, self._told) if side_address else None

    def start(self) -> str:
        self.ucx.start()
        address = f"{self._config.host}:{self.ucx.listen(self._config.port)}"
        if self._side is not None:
            self._side.start(KvListening(kv_address=address))
        return address

    def now(self) -> float:
        return time.monotonic()

    def act(self, act: Callable[[_Core], None]) -> None:
        act(self)
        self._keep_time()

    def fetch(self, ticket: Ticket, first_block: int, block_ids: list[int]) -> None:
        wanted = Wanted(
            first_block=first_block,
            blocks=len(block_ids),
            message_blocks=self._message_blocks,
            window=WINDOW,
            deadline=self.now() + self._config.load_timeout_ms / 1000,
            retries=self._config.retries,
        )
        self.incoming.fetch(ticket, wanted, block_ids)

    def release(self, key: Key, reason: str) -> None:
        self.incoming.cancel(key, reason)
        self.outgoing.release(key, reason)
        self._keep_time()

    def _told(self, message: DaemonToKv) -> None:
        if isinstance(message, KvConnect):
            self.incoming.connect(message.kv_address)
            self._keep_time()
        else:
            self.release((message.request_id, message.attempt), message.reason)

    def close(self) -> None:
        self.incoming.close()
        for channel in list(self._accepted_channels.values()):
            channel.close("the engine closes")
        if self._side is not None:
            self._side.close()

    def _open(self, address: str) -> Link:
        host, _, port = address.rpartition(":")
        return self.ucx.connect(host, int(port))

    def _accepted(self, link: Link) -> None:
        peer_id, self._next_peer = self._next_peer, self._next_peer + 1
        self._accepted_channels[peer_id] = Channel(
            peer_id,
            link,
            self._identity,
            on_open=lambda _: None,
            on_message=self._heard,
            on_closed=self._gone,
        )

    def _heard(self, channel: Channel, message: Heard) -> None:
        self.outgoing.heard(channel, message, self.now())
        self._keep_time()

    def _gone(self, channel: Channel, why: str, refused: bool) -> None:  # noqa: ARG002
        self._accepted_channels.pop(channel.id, None)
        self.outgoing.lost(channel, self.now())

    def _end(self, side: str, key: Key, report: KvReport, error: str, message: str) -> None:
        done = KvDone(
            request_id=key[0],
            attempt=key[1],
            side="send" if side == "send" else "receive",
            report=report,
            error=error,
            message=message,
        )
        self._on_end(done)
        if self._side is not None:
            self._side.send(done)

    def _keep_time(self) -> None:
        if not self._ticking and (len(self.outgoing) or len(self.incoming)):
            self._ticking = True
            self.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self.outgoing.tick(self.now())
        self.incoming.tick()
        self._keep_time()


class _Side:
    """The side channel to the daemon. While the daemon does not listen, events wait, bounded: the
    oldest is dropped when full, for a daemon that is away that long is replaced, not caught up."""

    def __init__(self, address: str, on_told: Callable[[DaemonToKv], None]) -> None:
        self._on_told = on_told
        self._decoder: Decoder[DaemonToKv] = Decoder(DaemonToKv)
        self._backlog: deque[KvToDaemon] = deque(maxlen=SIDE_BACKLOG)
        self._hello: KvListening | None = None
        self._socket = Socket(
            KV_SIDE, connect=address, on_frames=self._frames, on_connected=self._connected
        )

    def start(self, hello: KvListening) -> None:
        self._hello = hello
        self._socket.start()

    def send(self, message: KvToDaemon) -> None:
        self._backlog.append(message)
        self._flush()

    def close(self) -> None:
        self._socket.close()

    def _connected(self) -> None:
        if self._hello is not None:
            self._socket.send([encode(self._hello)])
        self._flush()

    def _flush(self) -> None:
        while self._backlog and self._socket.send([encode(self._backlog[0])]):
            self._backlog.popleft()

    def _frames(self, frames: list[bytes]) -> None:
        try:
            self._on_told(self._decoder.decode(frames[0]))
        except WireError:
            return

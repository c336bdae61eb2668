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
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from common.config import KvConfig
from common.errors import BatonError, Code
from common.kv.control import Identity
from common.kv.handoff.desk import TOMBSTONES, Key
from common.kv.kernel import kernel
from common.kv.layout import KvMemory
from common.kv.lease import Tombstones
from common.kv.messages import KvDone, KvStatus
from common.kv.plan import shape_of, wished_groups
from common.kv.plane import Plane
from common.messages import Ticket

START_S = 60.0
STOP_S = 3.0
STANDING_CALLS = 4


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
        self._shape = shape_of(memory.geometry)
        self._side_address = side_address
        self._on_ended = on_ended
        self._ended: deque[KvDone] = deque()
        self._news = threading.Event()
        self._generations: Tombstones[Key, int] = Tombstones(TOMBSTONES)
        self._status: KvStatus | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._core: Plane | None = None

    def start(self) -> str:
        """Returns the listener's `host:port`. Raises BatonError when UCX cannot be set up."""
        kernel()
        started: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._main, args=(started,), name="baton-kv", daemon=True
        )
        self._thread.start()
        try:
            result = started.get(timeout=START_S)
        except queue.Empty:
            raise BatonError(
                Code.ENGINE_FAILED,
                f"the KV thread did not start within {START_S:.0f} s; it is at "
                f"{_standing(self._thread)}",
            ) from None
        if isinstance(result, BatonError):
            raise result
        if isinstance(result, BaseException):
            raise BatonError(Code.ENGINE_FAILED, f"the KV thread failed: {result}") from result
        return result

    def offer(self, ticket: Ticket, blocks: int) -> None:
        """P: the prompt of `blocks` blocks will be computed here. Ends once as `send`."""
        self._call(lambda core: core.outgoing.offer(ticket, blocks, core.now()))

    def progress(
        self, key: Key, block_ids: Sequence[int], computed: int, *, ended: bool = False
    ) -> None:
        """P: the first `computed` of these blocks of the prompt hold KV. `ended`: the prefill ends
        now; what was sent by now was sent in its time."""
        core, ids, generation = self._core, list(block_ids), self._generations.get(key) or 0
        if ended and core is not None:
            early = core.outgoing.sent_bytes(key)
            self._call(lambda core: core.outgoing.prefill_ended(key, early))
        self._call(lambda core: core.outgoing.progress(key, ids, computed, generation))

    def ahead(self, key: Key, block_ids: Sequence[int], blocks: int, layers: int) -> None:
        """P: in the first `blocks` of these blocks the first `layers` layers hold KV for good; the
        others will after this step. Not passed on where D has no use for it."""
        if not (self._config.layer_groups or wished_groups(self._shape, len(block_ids)) > 1):
            return
        ids, generation = list(block_ids), self._generations.get(key) or 0
        self._call(lambda core: core.outgoing.ahead(key, ids, blocks, layers, generation))

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
        """Returns when `drain` has something to tell or to raise, or the time is over."""
        self._news.wait(seconds)

    @property
    def status(self) -> KvStatus | None:
        """Counts and holds, at most half a second old; None before the first."""
        return self._status

    def stop(self) -> None:
        """Idempotent; waits a moment for the thread."""
        core, thread = self._core, self._thread
        if core is not None:
            with contextlib.suppress(RuntimeError):
                core.loop.call_soon_threadsafe(core.stopped.set)
        if thread is not None:
            thread.join(STOP_S)

    def _call(self, act: Callable[[Plane], None]) -> None:
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
        core = Plane(
            self._identity,
            self._config,
            self._memory,
            self._side_address,
            self._note_end,
            self._note_status,
        )
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

    def _note_status(self, status: KvStatus) -> None:
        self._status = status

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        loop.default_exception_handler(context)
        self._failure = error if isinstance(error, BaseException) else RuntimeError(str(context))
        self._news.set()
        if self._on_ended is not None:
            self._on_ended()


def _standing(thread: threading.Thread) -> str:
    """The innermost calls of this thread now, outermost first."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the documented way
    if frame is None:
        return "no frame: it has not run, or has ended"
    calls = traceback.extract_stack(frame)[-STANDING_CALLS:]
    return " > ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls)

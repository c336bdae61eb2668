"""The KV service of one engine process, as its connector calls it.

Theory of operation: a handoff moves the KV of a prompt from the engine of a prefill worker (P) to
that of a decode worker (D). The router has given both a ticket. On P the connector calls `offer`,
then `progress` or `layers_computed` as the prompt's blocks get their KV; on D it calls `fetch` with
the blocks to fill. The two KV services do the rest, and each side learns by `drain` how its
handoff ended. In NIXL's terms a service is an agent, `HostMemory` its registered memory, and a
ticket what P's side channel would hand over; but here both sides know which blocks a transfer
moves, so P sends while it computes, and D verifies every message.

Each engine process has one KV thread. It owns UCX, the staging memory and every handoff of this
side. The engine's thread calls the methods below; each becomes a call on the KV thread's loop and
does not wait, except `withdraw`, which waits for one block copy at most. The daemon learns what
ended too, over a side channel, and may release tickets there. The KV thread sleeps when nothing is
in flight: a timer runs only while something can expire. An unexpected error ends the service, and
the engine's next call raises it.

Where to read on: `kv_thread.py` (what runs on the thread), `sides/` (P's and D's shells),
`handoff/protocol.py` (the state machines), `plan.py` (how a transfer is cut into messages).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from common.blocks import KvGroup
from common.config import KvConfig
from common.errors import BatonError, Code
from common.identity import AttemptKey, pull_key
from common.kv.canonical import CanonicalForm
from common.kv.checksum.kernel import kernel
from common.kv.handoff.lease import Tombstones
from common.kv.handoff.ticket_table import TOMBSTONES_MAX
from common.kv.kv_thread import KvThread
from common.kv.layout import KvMemory, Mark
from common.kv.messages import KvDone, KvOrder, KvStatus
from common.kv.peers.channel import WorkerIdentity
from common.kv.plan import default_layer_groups, shape_of
from common.kv.store.promotions import Promotions
from common.kv.store.results import StoreSize
from common.kv.store.side import StoreSide
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvHolder, KvSource, Ticket

NO_FORMS: Mapping[str, CanonicalForm] = MappingProxyType({})
START_S = 60.0
LOCKED_BYTES_PER_S = float(1 << 30)
"""A host locks memory for a card no slower."""
STOP_S = 3.0
STACK_CALLS = 4
"""Calls named when the thread does not start."""


class KvService:
    """Both sides of the handoffs of one engine process."""

    def __init__(
        self,
        identity: WorkerIdentity,
        config: KvConfig,
        memory: KvMemory,
        side_address: str = "",
        on_ended: Callable[[], None] | None = None,
        *,
        groups: tuple[KvGroup, ...] = (),
        store: StoreSize | None = None,
        canonical: Mapping[str, CanonicalForm] = NO_FORMS,
    ) -> None:
        """`side_address`: where the daemon binds the side channel; empty when the daemon is this
        very process. `on_ended` is called on the KV thread when `drain` has something new.
        `groups`: what the daemon is told of the engine's KV cache groups. `store`: what
        the store of this rank consists of; None makes none. `canonical`: the same memory in the
        canonical form, by `Ticket.element`; blocks of a canonical ticket are its blocks, whoever
        names them."""
        self._identity = identity
        self._config = config
        self._memory = memory
        self._shape = shape_of(memory.geometry)
        self._side_address = side_address
        self._on_ended = on_ended
        self._groups = groups
        self._store = store
        self._canonical = canonical
        self._ended: deque[KvDone] = deque()
        self._ended_event = threading.Event()
        self._generations: Tombstones[AttemptKey, int] = Tombstones(TOMBSTONES_MAX)
        self._status: KvStatus | None = None
        self._failure: BaseException | None = None
        self._os_thread: threading.Thread | None = None
        self._kv_thread: KvThread | None = None

    def start(self) -> str:
        """Returns the listener's `host:port`. Raises BatonError when UCX cannot be set up."""
        kernel()
        started: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()
        self._os_thread = threading.Thread(
            target=self._main, args=(started,), name="baton-kv", daemon=True
        )
        self._os_thread.start()
        limit = START_S
        if self._store is not None and self._memory.device is not None:
            locked = self._store.slots * self._memory.geometry.block_bytes
            limit += locked / LOCKED_BYTES_PER_S
        try:
            result = started.get(timeout=limit)
        except queue.Empty:
            raise BatonError(
                Code.ENGINE_FAILED,
                f"the KV thread did not start within {limit:.0f} s; it is at "
                f"{_stack_of(self._os_thread)}",
            ) from None
        if isinstance(result, BatonError):
            raise result
        if isinstance(result, BaseException):
            raise BatonError(Code.ENGINE_FAILED, f"the KV thread failed: {result}") from result
        return result

    def offer(self, ticket: Ticket, blocks: int) -> None:
        """P: the prompt of `blocks` blocks will be computed here. The handoff ends once, as
        `send`."""
        self._call(lambda kv: kv.send_side.offer(ticket, blocks))

    def progress(
        self,
        key: AttemptKey,
        block_ids: Sequence[int],
        computed: int,
        *,
        ended: bool = False,
        after: Mark | None = None,
    ) -> None:
        """P: the first `computed` of these blocks of the prompt hold KV, once `after` has passed
        where they are on a card. `ended`: the prefill ends now; what has been sent by now counts as
        overlapped with it."""
        kv, ids, generation = self._kv_thread, list(block_ids), self._generations.get(key) or 0
        if ended and kv is not None:
            early = kv.send_side.sent_bytes(key)
            self._call(lambda kv: kv.send_side.prefill_ended(key, early))
        self._call(lambda kv: kv.send_side.progress(key, ids, computed, generation, after))

    def layers_computed(
        self,
        key: AttemptKey,
        block_ids: Sequence[int],
        blocks: int,
        layers: int,
        after: Mark | None = None,
    ) -> None:
        """P: in the first `blocks` of these blocks the first `layers` layers hold their final KV;
        the other layers will after this step. `after`: as in `progress`. Does nothing where
        transfers have one layer group."""
        groups, on_card = self._config.layer_groups, self._memory.device is not None
        groups = groups or default_layer_groups(self._shape, len(block_ids), on_card=on_card)
        if groups < 2:
            return
        ids, generation = list(block_ids), self._generations.get(key) or 0
        made = key, ids, blocks, layers, generation, after
        self._call(lambda kv: kv.send_side.layers_computed(*made))

    def withdraw(self, key: AttemptKey) -> None:
        """P: the engine takes the blocks back. When this returns, nothing reads them any more, or,
        on a card, nothing will when what the caller gives to the card next begins."""
        if self._kv_thread is not None:
            self._generations.bury(key, self._kv_thread.send_side.withdraw(key))
        if self._memory.device is not None:
            self._memory.device.order_after_copies()
        self.progress(key, [], 0)

    def keep(self, key: AttemptKey, block_ids: Sequence[int], after: Mark | None = None) -> None:
        """D: the engine has given this stream up and keeps these blocks, which hold the KV of all
        its tokens but the last, `after` as in `progress`; none if some is not there. With blocks
        it ends once, as a send: when another D has taken them, when `keep_ms` are over, or by
        `release`, which may have come before."""
        ids = list(block_ids)
        self._call(lambda kv: kv.kept_streams.keep(key, ids, after))

    def hand_over(self, ticket: Ticket, kept_attempt: int) -> None:
        """D: what is or will be kept of this attempt of the ticket's request is for its D."""
        kept = (ticket.request_id, kept_attempt)
        self._call(lambda kv: kv.kept_streams.hand_over(kept, ticket))

    def fetch(
        self,
        ticket: Ticket,
        first_block: int,
        block_ids: Sequence[int],
        after: Mark | None = None,
    ) -> None:
        """D: fetch blocks [first_block, ...) of the ticket's prompt to these blocks, which may be
        written once `after` has passed where they are on a card. The handoff ends once, as
        `receive`, within the load timeout."""
        ids = list(block_ids)
        self._call(lambda kv: kv.fetches.fetch(ticket, first_block, ids, after))

    def pull(
        self,
        key: AttemptKey,
        source: KvSource,
        hashes: bytes,
        block_ids: Sequence[int],
        *,
        again: bool = False,
        after: Mark | None = None,
    ) -> None:
        """Fetch the blocks of these hashes out of the source's store to these blocks, `after` as in
        `fetch`. It ends once, as a receive of `pull_key(key, again=again)`. Raises ValueError if
        the source has another fingerprint."""
        if source.fingerprint != self._identity.fingerprint:
            raise ValueError(f"{source.name} has another fingerprint")
        ids = list(block_ids)
        self._call(lambda kv: kv.pull(pull_key(key, again=again), source, hashes, ids, after))

    def share_store(self, table: StoreTable, on_disk: StoreTable | None = None) -> None:
        """Other workers may pull what this table of the engine's process holds, and offer blocks
        for it. `on_disk`: the table of the disk below it, whose blocks they may pull, too."""

        def share(kv: KvThread) -> None:
            if kv.sharing is not None and kv.store_side is not None:
                below = kv.store_side.promotions(table, on_disk) if on_disk is not None else None
                kv.sharing.share(table, below)

        self._call(share)

    def tell_disk(self, changed: Mapping[BlockName, bytes | None]) -> None:
        """The daemon is to know what the disk of the store came to hold, and holds no more.
        `changed`: as `DiskStore.changes` has it."""

        def tell(kv: KvThread) -> None:
            if kv.sharing is not None:
                kv.sharing.tell_disk(changed)

        self._call(tell)

    def order_store(self, order: KvOrder) -> None:
        """What an operator wants of blocks of a store that others may use."""

        def carry_out(kv: KvThread) -> None:
            if kv.sharing is not None:
                kv.sharing.from_daemon(order)

        self._call(carry_out)

    def offer_copies(
        self,
        key: AttemptKey,
        holder: KvHolder,
        hashes: bytes,
        names: bytes,
        filled: int,
        owner: bytes = b"",
    ) -> None:
        """The store has these next blocks of this stream, of which `filled` have filled; that
        holder is to have them, too. `names` and `owner`: as in `KvOffer`. Nothing is waited for:
        `status` tells what the holder has. Nothing happens without a store for others."""

        def offer(kv: KvThread) -> None:
            if kv.sharing is not None:
                kv.sharing.offers.add(key, holder, hashes, names, filled, owner)

        self._call(offer)

    def end_copies(self, key: AttemptKey) -> None:
        """This stream is over: what was not offered of it is not offered any more. Idempotent."""

        def end(kv: KvThread) -> None:
            if kv.sharing is not None:
                kv.sharing.offers.over(key)

        self._call(end)

    def connect(self, kv_address: str) -> None:
        """D: connect to this P before a handoff needs it; a first one costs UCX 0.1-0.3 s."""
        self._call(lambda kv: kv.receive_side.connect(kv_address))

    def release(self, key: AttemptKey, reason: str) -> None:
        """Either side: the handoff is over, and what it held is freed. Idempotent."""
        self._call(lambda kv: kv.release(key, reason))

    @property
    def store(self) -> StoreSide | None:
        """The store of this rank, once the service has started; None without one."""
        return self._kv_thread.store_side if self._kv_thread is not None else None

    @property
    def promotions(self) -> Promotions | None:
        """What brings blocks from the disk to the memory of the store, for others; None before
        `share_store`, or without a disk that it named."""
        sharing = self._kv_thread.sharing if self._kv_thread is not None else None
        return sharing.pulls.below if sharing is not None else None

    def drain(self) -> list[KvDone]:
        """Returns what ended since the last call, each handoff once. Raises BatonError when the KV
        thread has failed."""
        if self._failure is not None:
            raise BatonError(
                Code.ENGINE_FAILED, f"the KV thread failed: {self._failure}"
            ) from self._failure
        self._ended_event.clear()
        ended: list[KvDone] = []
        with contextlib.suppress(IndexError):
            while True:
                ended.append(self._ended.popleft())
        return ended

    def wait_end(self, seconds: float) -> None:
        """Returns when `drain` has something to return or to raise, or when the time is over."""
        self._ended_event.wait(seconds)

    @property
    def status(self) -> KvStatus | None:
        """Counts and holds, at most half a second old; None before the first status."""
        return self._status

    def stop(self) -> None:
        """Waits up to `STOP_S` for the thread to end. Idempotent."""
        kv, thread = self._kv_thread, self._os_thread
        if kv is not None:
            with contextlib.suppress(RuntimeError):
                kv.loop.call_soon_threadsafe(kv.stopped.set)
        if thread is not None:
            thread.join(STOP_S)

    def _call(self, call: Callable[[KvThread], None]) -> None:
        kv = self._kv_thread
        if kv is None or self._failure is not None:
            raise BatonError(Code.ENGINE_FAILED, f"the KV thread is gone: {self._failure}")
        kv.loop.call_soon_threadsafe(kv.call, call)

    def _main(self, started: queue.SimpleQueue[str | BaseException]) -> None:
        try:
            asyncio.run(self._run(started))
        except BaseException as error:  # noqa: BLE001 - any end of the thread is reported
            self._failure = error
            started.put(error)

    async def _run(self, started: queue.SimpleQueue[str | BaseException]) -> None:
        kv = KvThread(
            self._identity,
            self._config,
            self._memory,
            self._side_address,
            self._on_end,
            self._on_status,
            groups=self._groups,
            canonical=self._canonical,
        )
        if self._store is not None:
            kv.open_store(self._memory, self._store, self._ended_event.set)
        address = kv.start()
        kv.loop.set_exception_handler(self._on_loop_error)
        self._kv_thread = kv
        started.put(address)
        try:
            await kv.stopped.wait()
        finally:
            kv.close()
            await asyncio.sleep(0)
            kv.ucx.close()
            if self._memory.device is not None:
                self._memory.device.close()

    def _on_end(self, done: KvDone) -> None:
        self._ended.append(done)
        self._ended_event.set()
        if self._on_ended is not None:
            self._on_ended()

    def _on_status(self, status: KvStatus) -> None:
        self._status = status

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        loop.default_exception_handler(context)
        self._failure = error if isinstance(error, BaseException) else RuntimeError(str(context))
        self._ended_event.set()
        if self._on_ended is not None:
            self._on_ended()


def _stack_of(thread: threading.Thread) -> str:
    """The innermost calls that this thread is in, outermost first."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - the documented way
    if frame is None:
        return "no frame: it has not run, or has ended"
    calls = traceback.extract_stack(frame)[-STACK_CALLS:]
    return " > ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls)

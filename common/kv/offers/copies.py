"""Copies of blocks that other workers offered, in this worker's store, on the KV thread.

Theory of operation: another worker tells which blocks its store has (`KvOffer`). What this store
lacks gets a slot, as far as there is room, and is pulled by the hashes as any pull is: with the
same transfer, credits, digests, retries and time limit. It goes to the slots and not to an engine's
blocks. When all has come verified, the slots are sealed, and can be found. What is refused, damaged
or lost frees its slots, and is counted. What this worker wants ahead of need (`prefetches.py`)
comes in the same way, without an offer. Every offer is answered once, with how many of its leading
blocks are here now; so whoever offers knows how far behind this holder is, and waits for it.

At most `COPIES_MAX` pulls are under way, and one while handoffs are, because somebody waits for
those. At most `OFFERS_WAITING_MAX` offers wait. Neither this class nor what it uses needs an
engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.config import KvConfig
from common.identity import AttemptKey, copy_key, identity_of
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import Ended
from common.kv.handoff.receiver import FetchSpec
from common.kv.messages import (
    NAME_BYTES,
    OFFER_BLOCKS_MAX,
    PULL_HASH_BYTES,
    KvCopied,
    KvOffer,
    KvTaken,
)
from common.kv.offers.pulls import GROUP, own_ticket, pull_spec
from common.kv.packing import Packing
from common.kv.peers.channel import Channel, WorkerIdentity
from common.kv.plan import shape_of
from common.kv.store.arena import Arena
from common.kv.store.promotions import Promotions
from common.kv.store.recency import OWNER_BYTES
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvReport, KvSource, Ticket

COPIES_MAX = 2
OFFERS_WAITING_MAX = 64


class Receives(Protocol):
    """What is used of `ReceiveSide`."""

    def __len__(self) -> int: ...

    @property
    def fetching(self) -> int: ...

    def fetch(
        self,
        ticket: Ticket,
        spec: FetchSpec,
        block_ids: Sequence[int],
        packing: Packing | None = None,
    ) -> None: ...

    def cancel(self, key: AttemptKey, reason: str) -> None: ...


@dataclass(slots=True)
class _Copy:
    """Blocks that are being pulled."""

    #: By the slot that each goes to.
    slots: dict[int, BlockName]
    #: Is called when all have come, and when they do not.
    ended: Callable[[], None]
    #: Over which they were offered; None: they are wanted here.
    channel: Channel | None = None
    #: By which routers know the blocks, as far as the offer told.
    names: Mapping[BlockName, bytes] = field(default_factory=dict)


class StoreCopies:
    """It runs on the KV thread. `table` is None until the owner of the store has made it."""

    def __init__(
        self,
        identity: WorkerIdentity,
        arena: Arena,
        receives: Receives,
        config: KvConfig,
        counters: HandoffCounters,
        clock: Callable[[], float],
        *,
        on_copied: Callable[[KvCopied], None],
    ) -> None:
        """`on_copied` is called when blocks with names have come, and when blocks are here that a
        stream needs soon."""
        memory = arena.as_memory()
        payload_bytes = max(config.message_bytes, memory.geometry.block_bytes)
        self._identity = identity
        self._arena = arena
        self._receives = receives
        self._packing = Packing(memory, payload_bytes)
        self._shape = shape_of(memory.geometry)
        self._config = config
        self._counters = counters
        self._clock = clock
        self._on_copied = on_copied
        self.table: StoreTable | None = None
        #: What the store has on a disk; None without one.
        self.below: Promotions | None = None
        self._waiting: deque[tuple[Channel, KvOffer]] = deque()
        self._copies: dict[AttemptKey, _Copy] = {}
        self._serial = 0

    def __len__(self) -> int:
        """Offers that are not answered yet."""
        return len(self._copies) + len(self._waiting)

    def on_offer(self, channel: Channel, message: KvOffer) -> None:
        whole, rest = divmod(len(message.hashes), PULL_HASH_BYTES)
        named = len(message.names) in (0, whole * NAME_BYTES)
        named &= len(message.owner) in (0, OWNER_BYTES)
        if rest or not 0 < whole <= OFFER_BLOCKS_MAX or not named:
            channel.close("an offer that no worker makes")
        elif self.table is None or len(self._waiting) >= OFFERS_WAITING_MAX:
            channel.send(KvTaken(offer=message.offer, blocks=0))
        else:
            self._waiting.append((channel, message))
            self.tick()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being received here that anybody waits for."""
        return not (self._waiting or self._receives.fetching)

    def fetch(
        self,
        source: KvSource,
        names: Sequence[BlockName],
        owner: bytes,
        ended: Callable[[], None],
    ) -> bool:
        """Pulls what the store lacks of these blocks out of the source's, and calls `ended` once.
        `owner`: as in `KvOffer`. False if there is nothing to pull, no room, or the source of
        another fingerprint."""
        alike = source.fingerprint == self._identity.fingerprint
        slots = self._slots_for(names, owner) if alike else {}
        if slots:
            self._pull(source, _Copy(slots, ended))
        return bool(slots)

    def on_channel_closed(self, channel: Channel) -> None:
        """Whoever offered over it is gone, and with it what it offered."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not channel)
        for key, copy in list(self._copies.items()):
            if copy.channel is channel:
                self._receives.cancel(key, "whoever offered these blocks is gone")

    def on_receive_ended(self, ticket: Ticket, report: KvReport, ended: Ended) -> bool:
        """A receive has ended at this end. Returns whether it was that of a copy."""
        copy = self._copies.pop((ticket.request_id, ticket.attempt), None)
        if copy is None:
            return False
        assert self.table is not None
        for slot, name in copy.slots.items():
            if not ended.error:
                self._arena.seal(slot, name)
            self.table.end_write(slot, self._clock(), whole=not ended.error)
        if copy.channel is None:
            self._counters.count_transfer(report)
        else:
            self._counters.count_copied(report, ended.error)
        if not ended.error:
            self._tell_names(copy)
        copy.ended()
        self.tick()
        return True

    def tick(self) -> None:
        """Begins what may be begun."""
        while self._waiting and len(self._copies) < self._copies_max():
            self._begin(*self._waiting.popleft())

    def _copies_max(self) -> int:
        return 1 if self._receives.fetching > len(self._copies) else COPIES_MAX

    def _begin(self, channel: Channel, offer: KvOffer) -> None:
        slots = self._slots_for(names_of(offer), offer.owner)
        peer = channel.peer
        if not slots or peer is None:
            self._answer(channel, offer)
            return
        source = KvSource(
            name=peer.name,
            incarnation=peer.incarnation,
            fingerprint=self._identity.fingerprint,
            kv_address=offer.kv_address,
            tokens=0,
        )
        names = dict(zip(names_of(offer), _split(offer.names), strict=False))
        self._pull(source, _Copy(slots, lambda: self._answer(channel, offer), channel, names))

    def _pull(self, source: KvSource, copy: _Copy) -> None:
        identity, slots = self._identity, copy.slots
        self._serial += 1
        key = copy_key(identity_of(identity.name, identity.incarnation), self._serial)
        hashes = b"".join(name.block_hash for name in slots.values())
        spec = pull_spec(self._config, self._shape, hashes, len(slots), self._clock())
        ticket = own_ticket(identity, key, source)
        self._copies[key] = copy
        self._receives.fetch(ticket, spec, list(slots), self._packing)

    def _slots_for(self, names: Sequence[BlockName], owner: bytes) -> dict[int, BlockName]:
        """Slots for those that the store lacks, up to the first for which there is no room. What it
        has, in memory or on its disk, counts as used."""
        assert self.table is not None
        slots: dict[int, BlockName] = {}
        with self.table.guard:
            self.table.mark_used(names, self._clock())
            if self.below is not None:
                self.below.note_used(names)
            for name in names:
                if name in self.table or self._is_below(name):
                    continue
                slot = self.table.begin_write(name, owner)
                if slot is None:
                    break
                slots[slot] = name
        return slots

    def _answer(self, channel: Channel, offer: KvOffer) -> None:
        assert self.table is not None
        now, names = self._clock(), names_of(offer)
        here = [bool(self.table.find([name], now)) or self._is_below(name) for name in names]
        held = here.index(False) if False in here else len(here)
        if offer.goes_on and held:
            self.table.ahead.extend(names[:held])
            self._on_copied(KvCopied(hashes=b"", names=b"", ahead=True))
        channel.send(KvTaken(offer=offer.offer, blocks=held))

    def _is_below(self, name: BlockName) -> bool:
        return self.below is not None and name in self.below

    def _tell_names(self, copy: _Copy) -> None:
        names = copy.names
        told = [(name.block_hash, names[name]) for name in copy.slots.values() if name in names]
        if told:
            hashes, ours = (b"".join(parts) for parts in zip(*told, strict=True))
            self._on_copied(KvCopied(hashes=hashes, names=ours))


def names_of(offer: KvOffer) -> list[BlockName]:
    """The blocks that are offered, in order."""
    hashes, step = offer.hashes, PULL_HASH_BYTES
    return [BlockName(GROUP, hashes[at : at + step]) for at in range(0, len(hashes), step)]


def _split(names: bytes) -> list[bytes]:
    return [names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)]

"""Blocks of this worker's store for other workers, on the KV thread.

Theory of operation: a worker whose prompt begins as one that was computed here asks for blocks by
the engine's hashes (`KvPull`), because the router told it of this store. It must be of the same
fingerprint, which the hello has shown. Whatever of the blocks the table lacks, the answer is a
refusal that tells how many leading ones it has, so a wrong hint costs a look-up. What only the disk
of the store has is brought to its memory first (`common.kv.store.promotions`). Otherwise the
slots are kept, and offered by a ticket for this worker alone: from there on a pull is a handoff,
with its credits, digests, retries and lease. The slots are let go when the ticket ends, however it
does. The engine takes no part, so a pull neither waits for a step nor makes one.

At most `PULLS_MAX` pulls are served at once, of at most half of the slots. What is over that is
refused, and computed where it is wanted. Every block is judged as it is sent; a damaged one is
found no more, and the transfer is given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.config import KvConfig
from common.errors import Code
from common.identity import AttemptKey
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.receiver import FetchSpec
from common.kv.messages import PULL_BLOCKS_MAX, PULL_HASH_BYTES, KvPull, KvRefused
from common.kv.packing import Packing
from common.kv.peers.channel import Channel, WorkerIdentity
from common.kv.plan import KvShape, transfer_chunking
from common.kv.sides.offered_prompt import StoredBlocks
from common.kv.sides.send import SendSide
from common.kv.store.arena import Arena
from common.kv.store.promotions import Promotions
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvSource, Ticket

PULLS_MAX = 16
PULL_RETRIES = 1
"""A pull is soon given up, because the engine can compute the blocks."""
SECRET_BYTES = 16
GROUP = 0
"""The one KV cache group of engines with a store."""


@dataclass(slots=True)
class _Asked:
    """A pull of which some hashes have come."""

    secret: bytes
    hashes: bytes = b""


class StorePulls:
    """It runs on the KV thread."""

    def __init__(
        self,
        identity: WorkerIdentity,
        arena: Arena,
        send_side: SendSide,
        config: KvConfig,
        counters: HandoffCounters,
        clock: Callable[[], float],
    ) -> None:
        memory = arena.as_memory()
        payload_bytes = max(config.message_bytes, memory.geometry.block_bytes)
        self._identity = identity
        self._arena = arena
        self._send_side = send_side
        self._packing = Packing(memory, payload_bytes)
        self._slots_max = max(1, memory.geometry.blocks // 2)
        self._lease_ms = min(config.lease_ms, config.store.pull_ms)
        self._counters = counters
        self._clock = clock
        #: The engine's table; None until the engine has made it.
        self.table: StoreTable | None = None
        #: What the store has on a disk; None without one.
        self.below: Promotions | None = None
        #: How many blocks are brought from the disk for each pull that waits for them.
        self._promoting: dict[AttemptKey, int] = {}
        #: By the id of the channel, what it asks for at the moment.
        self._asked: dict[int, _Asked] = {}
        #: The slots that are kept for each pull.
        self._kept: dict[AttemptKey, list[int]] = {}

    def __len__(self) -> int:
        """How many pulls are served now."""
        return len(self._kept)

    @property
    def waiting(self) -> int:
        """How many pulls wait for blocks from the disk."""
        return len(self._promoting)

    def on_pull(self, channel: Channel, message: KvPull) -> None:
        """Takes the next hashes of a pull, and offers its blocks once all have come."""
        asked = self._asked.pop(channel.id, None)
        if asked is None or asked.secret != message.secret:
            asked = _Asked(message.secret)
        asked.hashes += message.hashes
        whole, rest = divmod(len(asked.hashes), PULL_HASH_BYTES)
        if rest or not message.hashes or not whole <= message.total <= PULL_BLOCKS_MAX:
            channel.close("a pull that no worker makes")
        elif whole < message.total:
            self._asked[channel.id] = asked
        elif not self._is_served((message.request_id, message.attempt)):
            self._on_asked(channel, message, asked.hashes)

    def on_channel_closed(self, channel: Channel) -> None:
        self._asked.pop(channel.id, None)

    def on_send_ended(self, ticket: Ticket, *, taken: bool) -> bool:
        """A ticket has ended at this end. Returns whether it was that of a pull. `taken`: whether
        the other worker has all its blocks."""
        slots = self._kept.pop((ticket.request_id, ticket.attempt), None)
        if slots is None:
            return False
        assert self.table is not None
        if self.below is not None:
            names = [self.table.name_in(slot) for slot in slots]
            self.below.note_used([name for name in names if name is not None])
        self.table.end_read(slots, self._clock())
        self._counters.store_served += len(slots) if taken else 0
        return True

    def _is_served(self, key: AttemptKey) -> bool:
        return key in self._promoting or self._send_side.offers(key)

    def _on_asked(self, channel: Channel, message: KvPull, hashes: bytes) -> None:
        """Offers the blocks, at once or when the disk has given what memory lacks of them."""
        key = (message.request_id, message.attempt)
        names = [
            BlockName(GROUP, hashes[at : at + PULL_HASH_BYTES])
            for at in range(0, len(hashes), PULL_HASH_BYTES)
        ]
        why = self._why_not(len(names))

        def come() -> None:
            del self._promoting[key]
            if not channel.closed:
                self._offer(channel, message, names)

        if why:
            refuse_pull(self._send_side, channel, message, why)
        elif self.below is not None and self.below.begin(names, come):
            self._promoting[key] = len(names)
        else:
            self._offer(channel, message, names)

    def _offer(self, channel: Channel, message: KvPull, names: Sequence[BlockName]) -> None:
        key = (message.request_id, message.attempt)
        slots, why = self._take(names)
        if why:
            refuse_pull(self._send_side, channel, message, why, len(slots))
            return
        self._kept[key] = slots
        stored = StoredBlocks(self._packing, lambda blocks: self._judge(blocks, slots, names))
        self._send_side.offer(self._ticket(channel, message), len(slots), stored)
        self._send_side.progress(key, slots, len(slots), 0)

    def _take(self, names: Sequence[BlockName]) -> tuple[list[int], str]:
        """The slots of these blocks, kept; or those of some of them, not kept, and why."""
        assert self.table is not None
        slots = self.table.take(names, self._clock())
        if len(slots) == len(names):
            return slots, ""
        self.table.end_read(slots, self._clock())
        return slots, f"its store has {len(slots)} of {len(names)} blocks"

    def _why_not(self, blocks: int) -> str:
        """Why a pull of so many blocks is not served now; empty if it may be."""
        if self.table is None:
            return "its engine is not ready"
        if len(self._kept) + len(self._promoting) >= PULLS_MAX:
            return f"{PULLS_MAX} pulls are served already"
        kept = sum(map(len, self._kept.values())) + sum(self._promoting.values())
        return "half of its store is kept for pulls" if kept + blocks > self._slots_max else ""

    def _judge(self, blocks: range, slots: Sequence[int], names: Sequence[BlockName]) -> bool:
        """Whether all these blocks of a pull are what they should be."""
        sound = True
        for block in blocks:
            if not self._arena.holds(slots[block], names[block]):
                sound = False
                self._counters.store_damaged += 1
                assert self.table is not None
                self.table.damaged(slots[block])
        return sound

    def _ticket(self, channel: Channel, message: KvPull) -> Ticket:
        identity, peer = self._identity, channel.peer
        assert peer is not None
        return Ticket(
            secret=message.secret,
            request_id=message.request_id,
            attempt=message.attempt,
            fingerprint=identity.fingerprint,
            prefill=identity.name,
            prefill_incarnation=identity.incarnation,
            decode=peer.name,
            decode_incarnation=peer.incarnation,
            kv_address="",
            lease_ms=self._lease_ms,
        )


def refuse_pull(
    send_side: SendSide, channel: Channel, message: KvPull, why: str, held: int = 0
) -> None:
    """Tells the other worker, and answers the slots that it will grant with void messages. `held`:
    as in `KvRefused`."""
    refusal = KvRefused(transfer=message.transfer, code=Code.NOT_FOUND, message=why, held=held)
    channel.send(refusal)
    send_side.release((message.request_id, message.attempt), why)


def own_ticket(identity: WorkerIdentity, key: AttemptKey, source: KvSource) -> Ticket:
    """What this worker pulls from this source by. `key`: as of `pull_key`. Raises ValueError if the
    source is not of its fingerprint."""
    if source.fingerprint != identity.fingerprint:
        raise ValueError(f"{source.name} has another fingerprint")
    request_id, attempt = key
    return Ticket(
        secret=os.urandom(SECRET_BYTES),
        request_id=request_id,
        attempt=attempt,
        fingerprint=identity.fingerprint,
        prefill=source.name,
        prefill_incarnation=source.incarnation,
        decode=identity.name,
        decode_incarnation=identity.incarnation,
        kv_address=source.kv_address,
        lease_ms=0.0,
    )


def pull_spec(
    config: KvConfig, shape: KvShape, hashes: bytes, blocks: int, now: float
) -> FetchSpec:
    """A pull of the blocks of these hashes. They are not compressed, because what is pulled is
    handed on, and stored."""
    raw = shape.uncompressed()
    return FetchSpec(
        first_block=0,
        blocks=blocks,
        shape=raw,
        chunking=transfer_chunking(config.message_bytes, raw, 1, blocks),
        deadline=now + config.store.pull_ms / 1000,
        retries=min(config.retries, PULL_RETRIES),
        hashes=hashes,
    )

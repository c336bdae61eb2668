"""Blocks of this worker's store that another holder is to have, too, on the KV thread.

Theory of operation: the engine's thread says which blocks of a stream its store has now, and who is
to have them, and never waits. They are offered (`KvOffer`) over a connection to that holder, in
order, one offer of a stream at a time, and few to one holder. The holder pulls them as it can and
answers; so a slow holder is waited for here, in a bounded backlog, and what is over that is skipped
and counted. An offer that was not taken is made again, `TRIES_MAX` times in all. What a holder has
is known by its answers alone; how much of a stream that is, without a gap, is the stream's
checkpoint.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from common.identity import AttemptKey
from common.kv.handoff.counters import HandoffCounters
from common.kv.messages import NAME_BYTES, OFFER_BLOCKS_MAX, PULL_HASH_BYTES, KvOffer, KvTaken
from common.kv.peers.channel import Channel
from common.messages import KvCheckpoint, KvHolder

STREAMS_MAX = 1024
BACKLOG_MAX = 65_536
"""Blocks that wait to be offered or to be taken, of all streams."""
OFFER_BYTES = 8 << 20
"""Of the blocks of one offer at most, or one block."""
OFFERS_MAX = 4
"""Under way to one holder."""
LASTING_S = 30.0
"""For so long a pool may take what is left of a stream that is over."""
RETRY_S = 0.5
TRIES_MAX = 3


OnFollowed = Callable[[AttemptKey, int, str], None]
"""Gets a stream, how many of its leading blocks the holder has, and why that is not all; empty: it
has what was asked for."""


@dataclass(slots=True)
class _Stream:
    holder: KvHolder
    #: As in `KvOffer`.
    owner: bytes
    #: Hash and name of those that the holder is not known to have, in order.
    blocks: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    #: How many have filled, as the engine's thread said last.
    filled: int = 0
    #: How many leading ones the holder has.
    held: int = 0
    #: Whether some before `blocks` were skipped, so that `held` grows no more.
    gap: bool = False
    #: Whether some after `blocks` were skipped, so that those after them are, too.
    cut: bool = False
    #: The number of the offer under way, its blocks, and the channel that it went over.
    offer: int = 0
    offered: int = 0
    channel: Channel | None = None
    #: When the offer under way is given up, or the next one may be made. An instant.
    due: float = 0.0
    #: How often the next blocks were offered in vain.
    tries: int = 0
    #: When the rest of a stream that is over is given up; None while it is not over. An instant.
    until: float | None = None


class StoreOffers:
    """It runs on the KV thread."""

    def __init__(
        self,
        block_bytes: int,
        answer_s: float,
        counters: HandoffCounters,
        clock: Callable[[], float],
        open_channel: Callable[[str], Channel | None],
        *,
        on_followed: OnFollowed,
    ) -> None:
        """`answer_s`: how long a holder may take to answer an offer. `open_channel` returns the
        connection to a listener; None: it does not stand yet. `on_followed`: as `follow` says."""
        #: This worker's own listener.
        self.kv_address = ""
        self._blocks_max = max(1, min(OFFER_BLOCKS_MAX, OFFER_BYTES // block_bytes))
        self._answer_s = answer_s
        self._counters = counters
        self._clock = clock
        self._open_channel = open_channel
        self._on_followed = on_followed
        #: Streams that are followed, with their holder and how many blocks it may lack.
        self._followed: dict[AttemptKey, tuple[KvHolder, int]] = {}
        self._streams: dict[AttemptKey, _Stream] = {}
        #: The stream of each offer under way.
        self._offers: dict[int, AttemptKey] = {}
        self._backlog = 0
        self._next_offer = int.from_bytes(os.urandom(6), "little")

    def __len__(self) -> int:
        """Blocks that the holders are not known to have."""
        return self._backlog

    def add(
        self,
        key: AttemptKey,
        holder: KvHolder,
        hashes: bytes,
        names: bytes,
        filled: int,
        owner: bytes = b"",
    ) -> None:
        """The store has these next blocks of a stream, of which `filled` have filled. `names` and
        `owner`: as in `KvOffer`. Another holder than before gets the stream from its beginning."""
        stream = self._streams.get(key)
        if stream is not None and stream.holder != holder:
            self._forget(key)
            stream = None
        if stream is None and len(self._streams) >= STREAMS_MAX:
            self._counters.offers_skipped += len(hashes) // PULL_HASH_BYTES
            return
        if stream is None:
            stream = self._streams[key] = _Stream(holder, owner)
        stream.filled = filled
        for nth, at in enumerate(range(0, len(hashes), PULL_HASH_BYTES)):
            stream.cut |= self._backlog >= BACKLOG_MAX
            if stream.cut:
                self._counters.offers_skipped += 1
                continue
            name = names[nth * NAME_BYTES : (nth + 1) * NAME_BYTES]
            stream.blocks.append((hashes[at : at + PULL_HASH_BYTES], name))
            self._backlog += 1
        self._offer(key, stream)
        self._tell_followed(key)

    def follow(self, key: AttemptKey, holder: KvHolder, lag_blocks: int) -> None:
        """Calls `on_followed` once, with what this holder has of the stream, when it lacks at most
        so many of the full blocks; or with a reason when it gets no more. Not for a stream that is
        over before, nor for more than `STREAMS_MAX`."""
        if len(self._followed) < STREAMS_MAX:
            self._followed[key] = holder, lag_blocks
            self._tell_followed(key)

    def _tell_followed(self, key: AttemptKey) -> None:
        followed, stream = self._followed.get(key), self._streams.get(key)
        if followed is None or stream is None or stream.holder != followed[0]:
            return
        lacking, ends = stream.filled - stream.held, stream.gap or stream.cut
        if ends or lacking <= followed[1]:
            del self._followed[key]
            self._on_followed(key, stream.held, f"{lacking} blocks were skipped" if ends else "")

    def over(self, key: AttemptKey) -> None:
        """The stream is over. Nobody will want the rest of it, except a pool. Idempotent."""
        self._followed.pop(key, None)
        stream = self._streams.get(key)
        if stream is not None and stream.holder.lasting and stream.blocks:
            stream.until = self._clock() + LASTING_S
        else:
            self._forget(key)

    def _forget(self, key: AttemptKey) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            self._offers.pop(stream.offer, None)
            self._backlog -= len(stream.blocks)

    def on_taken(self, channel: Channel, message: KvTaken) -> None:
        """A holder has answered. What was not asked is ignored."""
        key = self._offers.get(message.offer)
        stream = self._streams[key] if key is not None else None
        if key is None or stream is None or stream.channel is not channel:
            return
        taken = max(0, min(message.blocks, stream.offered))
        self._drop(stream, taken)
        failed = taken < stream.offered
        stream.offered -= taken
        self._counters.store_offered += taken
        stream.held += 0 if stream.gap else taken
        self._end_offer(stream, failed=failed)
        if stream.until is not None and not stream.blocks:
            self._forget(key)
        self._tell_followed(key)
        self._go_on(stream.holder.kv_address)

    def tick(self) -> None:
        """Call several times a second."""
        now = self._clock()
        for key, stream in list(self._streams.items()):
            lost = stream.channel is not None and (stream.channel.closed or stream.due <= now)
            if lost:
                self._end_offer(stream, failed=True)
                self._tell_followed(key)
            if stream.until is not None and (not stream.blocks or stream.until <= now):
                self._counters.offers_skipped += len(stream.blocks)
                self._forget(key)
            else:
                self._offer(key, stream)

    def checkpoints(self, most: int) -> tuple[KvCheckpoint, ...]:
        """Of the streams that began last."""
        return tuple(
            KvCheckpoint(
                request_id=key[0],
                attempt=key[1],
                holder=stream.holder.name,
                blocks=stream.filled,
                held=stream.held,
            )
            for key, stream in list(self._streams.items())[-most:]
        )

    def _go_on(self, kv_address: str) -> None:
        for key, stream in list(self._streams.items()):
            if stream.holder.kv_address == kv_address:
                self._offer(key, stream)

    def _offer(self, key: AttemptKey, stream: _Stream) -> None:
        """Offers the next blocks of a stream if it may be done now."""
        holder, now = stream.holder, self._clock()
        if stream.channel is not None or not stream.blocks or stream.due > now:
            return
        under_way = sum(
            self._streams[other].holder.kv_address == holder.kv_address
            for other in self._offers.values()
        )
        channel = self._open_channel(holder.kv_address) if under_way < OFFERS_MAX else None
        if channel is None or channel.peer is None:
            return
        if (channel.peer.name, channel.peer.incarnation) != (holder.name, holder.incarnation):
            self._skip(stream, len(stream.blocks))
            return
        some = [stream.blocks[at] for at in range(min(self._blocks_max, len(stream.blocks)))]
        stream.offer, self._next_offer = self._next_offer, self._next_offer + 1
        stream.offered, stream.channel, stream.due = len(some), channel, now + self._answer_s
        self._offers[stream.offer] = key
        channel.send(
            KvOffer(
                offer=stream.offer,
                kv_address=self.kv_address,
                hashes=b"".join(block_hash for block_hash, _ in some),
                names=_joined([name for _, name in some]),
                owner=stream.owner,
                goes_on=holder.goes_on,
            )
        )

    def _end_offer(self, stream: _Stream, *, failed: bool) -> None:
        self._offers.pop(stream.offer, None)
        stream.channel, stream.due = None, 0.0
        stream.tries = stream.tries + 1 if failed else 0
        if not failed:
            return
        stream.due = self._clock() + RETRY_S
        if stream.tries >= TRIES_MAX:
            self._skip(stream, min(stream.offered, len(stream.blocks)))

    def _skip(self, stream: _Stream, count: int) -> None:
        """The holder does not get the next blocks."""
        stream.gap, stream.tries = True, 0
        self._counters.offers_skipped += count
        self._drop(stream, count)

    def _drop(self, stream: _Stream, count: int) -> None:
        for _ in range(count):
            stream.blocks.popleft()
        self._backlog -= count


def _joined(names: Sequence[bytes]) -> bytes:
    """Empty if one has none."""
    return b"".join(names) if all(names) else b""

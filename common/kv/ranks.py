"""Tensor parallel workers: one KV thread a rank, rank i to rank i, one worker to everyone else.

Theory of operation: all ranks hold the same blocks of their own heads, so a handoff is one of each
rank, by the same ticket, and is over when all ranks' are. A worker's `kv_address` lists its ranks'
listeners in order; each rank takes its own. The daemon adds up what the ranks say.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from common.kv.messages import DaemonToKv, KvDone, KvStatus
from common.kv.side import SideChannel
from common.messages import KvCounts, KvHold, KvReport

SEPARATOR = ","
OPEN_MAX = 8192
_ADDED = frozenset(
    {
        "messages",
        "payload_bytes",
        "wire_bytes",
        "early_bytes",
        "raw_bytes",
        "retries",
        "refetches",
        "digest_mismatches",
    }
)
_ADDED_COUNTS = frozenset(
    {
        "bytes_in",
        "bytes_out",
        "early_bytes_out",
        "retries",
        "refetches",
        "digest_mismatches",
        "stale",
    }
)


def address_of(kv_address: str, rank: int) -> str:
    """This rank's own of a worker's addresses. Raises ValueError when there is none."""
    addresses = kv_address.split(SEPARATOR)
    if rank >= len(addresses):
        raise ValueError(f"{kv_address} names {len(addresses)} ranks, and this is rank {rank}")
    return addresses[rank]


@dataclass(slots=True)
class _Open:
    done: KvDone
    ranks: int = 1


@dataclass(slots=True)
class RankMerge:
    """Ends of one handoff, until all `ranks` have told theirs. At most `OPEN_MAX` are open; the
    oldest is forgotten then, for a rank that never tells is a dead engine."""

    ranks: int
    _open: OrderedDict[tuple[str, int, str], _Open] = field(default_factory=OrderedDict)

    def add(self, done: KvDone) -> KvDone | None:
        """The whole worker's end, once the last rank told its own."""
        key = (done.request_id, done.attempt, done.side)
        seen = self._open.pop(key, None)
        merged = _Open(done) if seen is None else _Open(_both(seen.done, done), seen.ranks + 1)
        if merged.ranks >= self.ranks:
            return merged.done
        self._open[key] = merged
        if len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)
        return None


class SideChannels:
    """The daemon's side channels to all ranks of its engine, as one."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._sides = [SideChannel(address) for address in addresses]
        self._merge = RankMerge(len(self._sides))

    def wait_listening(self, seconds: float) -> str:
        """The worker's `kv_address`. Blocks; not on a running loop. Raises BatonError."""
        return SEPARATOR.join(side.wait_listening(seconds) for side in self._sides)

    def start(self, on_done: Callable[[KvDone], None]) -> None:
        """Delivers on the running loop."""

        def heard(done: KvDone) -> None:
            whole = self._merge.add(done)
            if whole is not None:
                on_done(whole)

        for side in self._sides:
            side.start(heard)

    @property
    def status(self) -> KvStatus | None:
        """None until every rank spoke."""
        told = [side.status for side in self._sides]
        known = [status for status in told if status is not None]
        return merged_status(known) if known and len(known) == len(told) else None

    def send(self, message: DaemonToKv) -> None:
        for side in self._sides:
            side.send(message)

    def close(self) -> None:
        for side in self._sides:
            side.close()


def merged_status(told: Sequence[KvStatus]) -> KvStatus:
    """Bytes and messages are added up; a handoff of all ranks counts once."""
    if len(told) == 1:
        return told[0]
    counts = [msgspec.structs.asdict(status.counts) for status in told]
    merged = {
        name: (sum if name in _ADDED_COUNTS else max)(each[name] for each in counts)
        for name in counts[0]
    }
    holds: dict[tuple[str, int, str], KvHold] = {}
    for hold in (hold for status in told for hold in status.holds):
        key = (hold.request_id, hold.attempt, hold.side)
        seen = holds.get(key)
        holds[key] = hold if seen is None else _held_together(seen, hold)
    return KvStatus(
        counts=KvCounts(**merged),
        holds=tuple(holds.values()),
        holds_total=max(status.holds_total for status in told),
        lanes=told[0].lanes,
        linked=told[0].linked,
    )


def _held_together(one: KvHold, other: KvHold) -> KvHold:
    return msgspec.structs.replace(
        one,
        bytes=one.bytes + other.bytes,
        lease_left_ms=max(one.lease_left_ms, other.lease_left_ms),
        age_ms=max(one.age_ms, other.age_ms),
    )


def _both(one: KvDone, other: KvDone) -> KvDone:
    """An error of one rank is the worker's: vLLM gives the request up on all of them."""
    bad = one if one.error else other
    return msgspec.structs.replace(
        bad,
        report=_added(one.report, other.report),
        trouble=one.trouble or other.trouble,
        choice=one.choice or other.choice,
    )


def _added(one: KvReport, other: KvReport) -> KvReport:
    first, second = msgspec.structs.asdict(one), msgspec.structs.asdict(other)
    added = {
        name: (first[name] + second[name]) if name in _ADDED else max(first[name], second[name])
        for name in first
    }
    added["complete"] = one.complete and other.complete
    return KvReport(**added)

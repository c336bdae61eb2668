"""Tensor parallel workers: one KV thread for each rank, rank i to rank i, one worker to all others.

Theory of operation: all ranks hold the same blocks of their own heads. So a handoff is one of each
rank, by the same ticket, and is over when those of all ranks are. A worker's `kv_address` lists the
listeners of its ranks in order, and each rank takes its own; between unlike numbers of ranks, see
`common/kv/handoff/parts.py`. The daemon merges what the ranks report.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from common.kv.daemon_link.side_channel import DaemonSideChannel
from common.kv.handoff.parts import joined_reports
from common.kv.messages import (
    NO_FORM,
    DaemonToKv,
    KvCopied,
    KvDone,
    KvForm,
    KvListening,
    KvStatus,
)
from common.messages import KvCounts, KvHold
from common.net.kv_address import joined_addresses

PARTIAL_ENDS_MAX = 8192
_SUMMED_COUNTS = frozenset(
    {
        "bytes_in",
        "bytes_out",
        "early_bytes_out",
        "retries",
        "refetches",
        "digest_mismatches",
        "stale",
        "links_refused",
    }
)


@dataclass(slots=True)
class _PartialEnd:
    """The merged end of a handoff, of the ranks that reported theirs so far."""

    done: KvDone
    ranks: int = 1


@dataclass(slots=True)
class RankMerge:
    """Merges the ends of each handoff until all ranks have reported theirs.

    At most `PARTIAL_ENDS_MAX` handoffs are incomplete; then the oldest is forgotten, because a rank
    that never reports belongs to a dead engine.
    """

    ranks: int
    _partial: OrderedDict[tuple[str, int, str], _PartialEnd] = field(default_factory=OrderedDict)

    def add(self, done: KvDone) -> KvDone | None:
        """Returns the worker's end with the last rank's, else None."""
        key = (done.request_id, done.attempt, done.side)
        before = self._partial.pop(key, None)
        merged = (
            _PartialEnd(done)
            if before is None
            else _PartialEnd(_merged_end(before.done, done), before.ranks + 1)
        )
        if merged.ranks >= self.ranks:
            return merged.done
        self._partial[key] = merged
        if len(self._partial) > PARTIAL_ENDS_MAX:
            self._partial.popitem(last=False)
        return None


class RankSideChannels:
    """The daemon's side channels to all ranks of its engine, as one."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._channels = [DaemonSideChannel(address) for address in addresses]
        self._merge = RankMerge(len(self._channels))

    def wait_listening(self, seconds: float) -> KvListening:
        """What the KV threads say, as one: the worker's `kv_address`, and the bytes of a block over
        all ranks. Blocks; not on a running loop. Raises BatonError."""
        ranks = [channel.wait_listening(seconds) for channel in self._channels]
        return KvListening(
            kv_address=joined_addresses([rank.kv_address for rank in ranks]),
            groups=ranks[0].groups,
            block_bytes=sum(rank.block_bytes for rank in ranks),
            pull_blocks=ranks[0].pull_blocks if len(ranks) == 1 else 0,
            disk_blocks=ranks[0].disk_blocks if len(ranks) == 1 else 0,
            layers=ranks[0].layers,
            form=_joined_form([rank.form for rank in ranks]),
        )

    def start(
        self,
        on_done: Callable[[KvDone], None],
        on_copied: Callable[[KvCopied], None] | None = None,
    ) -> None:
        """Delivers on the running loop."""

        def on_rank_done(done: KvDone) -> None:
            merged = self._merge.add(done)
            if merged is not None:
                on_done(merged)

        for channel in self._channels:
            channel.start(on_rank_done, on_copied)

    def deliver_waiting(self) -> None:
        """Delivers at once what has come and was not delivered yet."""
        for channel in self._channels:
            channel.deliver_waiting()

    @property
    def status(self) -> KvStatus | None:
        """None until every rank has reported."""
        statuses = [channel.status for channel in self._channels]
        known = [status for status in statuses if status is not None]
        return merged_status(known) if known and len(known) == len(statuses) else None

    def send(self, message: DaemonToKv) -> None:
        for channel in self._channels:
            channel.send(message)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def _joined_form(ranks: Sequence[KvForm]) -> KvForm:
    """Ranks have the same form, each of its own heads."""
    if NO_FORM in ranks:
        return NO_FORM
    block_bytes = sum(rank.block_bytes for rank in ranks)
    return msgspec.structs.replace(ranks[0], block_bytes=block_bytes)


def merged_status(statuses: Sequence[KvStatus]) -> KvStatus:
    """Bytes and messages of the ranks are summed; a handoff of all ranks counts once."""
    if len(statuses) == 1:
        return statuses[0]
    counts = [msgspec.structs.asdict(status.counts) for status in statuses]
    merged = {
        name: (sum if name in _SUMMED_COUNTS else max)(rank_counts[name] for rank_counts in counts)
        for name in counts[0]
    }
    holds = merged_holds(hold for status in statuses for hold in status.holds)
    return KvStatus(
        counts=KvCounts(**merged),
        holds=tuple(holds),
        holds_total=max(status.holds_total for status in statuses),
        lanes=statuses[0].lanes,
        linked=statuses[0].linked,
    )


def merged_holds(holds: Iterable[KvHold]) -> list[KvHold]:
    """One for each handoff of which these are, on some rank or of some part."""
    merged: dict[tuple[str, int, str], KvHold] = {}
    for hold in holds:
        key = (hold.request_id, hold.attempt, hold.side)
        before = merged.get(key)
        merged[key] = hold if before is None else _merged_hold(before, hold)
    return list(merged.values())


def _merged_hold(one: KvHold, other: KvHold) -> KvHold:
    return msgspec.structs.replace(
        one,
        bytes=one.bytes + other.bytes,
        lease_left_ms=max(one.lease_left_ms, other.lease_left_ms),
        age_ms=max(one.age_ms, other.age_ms),
    )


def _merged_end(one: KvDone, other: KvDone) -> KvDone:
    """An error of one rank is the worker's, because vLLM gives the request up on all ranks."""
    bad = one if one.error else other
    return msgspec.structs.replace(
        bad,
        report=joined_reports(one.report, other.report),
        trouble=one.trouble or other.trouble,
        choice=one.choice or other.choice,
    )

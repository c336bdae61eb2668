"""Bytes a second between one P and one D, from D's reports of handoffs.

`transfer_ms` runs from the first data to the last, so the first message's bytes are not counted,
and a handoff of one message says nothing. One that left for the most part before its prefill ended
was paced by P's computing: it can tell that the wire is faster than was thought, never that it is
slower, or a prompt that P has cached would seem to take as long as one that it must compute. One
that waited for P in smaller part looks slower than the wire is, at most by half. KV that was
compressed counts with its own size, for that
is what is predicted.
"""

from __future__ import annotations

from collections import OrderedDict

from common.messages import KvReport
from services.router.estimators.ratio import Ratio

PAIRS_MAX = 8_192

Pair = tuple[str, str]


class PairBandwidth:
    """By (P's name, D's name); the fleet's mean for a pair without samples. The least recently used
    of more than `PAIRS_MAX` pairs is forgotten."""

    def __init__(self, memory: int, prior_bytes_per_s: float) -> None:
        self._memory = memory
        self._prior = prior_bytes_per_s
        self._fleet = Ratio(memory)
        self._usual = prior_bytes_per_s
        self._pairs: OrderedDict[Pair, Ratio] = OrderedDict()

    def __len__(self) -> int:
        """Pairs with samples."""
        return len(self._pairs)

    def moved(self, prefill: str, decode: str, report: KvReport) -> None:
        if report.messages < 2 or report.transfer_ms <= 0 or report.payload_bytes <= 0:
            return
        counted = (
            max(report.payload_bytes, report.raw_bytes) * (report.messages - 1) / report.messages
        )
        seconds = report.transfer_ms / 1000
        paced = report.early_bytes * 2 > report.payload_bytes
        if paced and counted / seconds < self.bytes_per_s(prefill, decode):
            return
        self._fleet.add(counted, seconds)
        self._usual = self._fleet.value(self._prior)
        pair = (prefill, decode)
        ratio = self._pairs.get(pair)
        if ratio is None:
            ratio = self._pairs[pair] = Ratio(self._memory)
            if len(self._pairs) > PAIRS_MAX:
                self._pairs.popitem(last=False)
        else:
            self._pairs.move_to_end(pair)
        ratio.add(counted, seconds)

    def bytes_per_s(self, prefill: str = "", decode: str = "") -> float:
        ratio = self._pairs.get((prefill, decode))
        return self._usual if ratio is None else ratio.value(self._usual)

    def known(self, limit: int) -> dict[str, float]:
        """The most recently used pairs, as `P>D`."""
        latest = list(self._pairs.items())[-limit:] if limit else []
        return {f"{p}>{d}": ratio.value(self._prior) for (p, d), ratio in latest}

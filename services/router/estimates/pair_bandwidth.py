"""Bytes per second between one P and one D, from D's reports of handoffs.

`transfer_ms` runs from the first data to the last, so the bytes of the first message are not
counted, and a handoff of one message is no sample. A handoff of which most bytes left before its
prefill ended was paced by P's computing. Such a sample may raise the estimate but never lower it;
otherwise a prompt that P has cached would seem to take as long as one that P must compute. A
handoff that waited for P in a smaller part looks slower than the wire, by half at most. Compressed
KV counts with its uncompressed size, because that is the size that predictions start from.
"""

from __future__ import annotations

from collections import OrderedDict

from common.messages import KvReport
from services.router.estimates.ratio import Ratio

PAIRS_MAX = 8_192

PairNames = tuple[str, str]
"""(name of P, name of D)."""


class PairBandwidth:
    """A pair without samples has the mean of the fleet. At most `PAIRS_MAX` pairs are kept; the
    least recently used one is forgotten."""

    def __init__(self, memory: int, prior_bytes_per_s: float) -> None:
        self._memory = memory
        self._prior = prior_bytes_per_s
        self._fleet = Ratio(memory)
        self._mean = prior_bytes_per_s
        self._pairs: OrderedDict[PairNames, Ratio] = OrderedDict()

    def __len__(self) -> int:
        """Pairs that have samples."""
        return len(self._pairs)

    def record_transfer(self, prefill: str, decode: str, report: KvReport) -> None:
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
        self._mean = self._fleet.value(self._prior)
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
        return self._mean if ratio is None else ratio.value(self._mean)

    def known(self, limit: int) -> dict[str, float]:
        """The most recently used pairs, by `P>D`."""
        latest = list(self._pairs.items())[-limit:] if limit else []
        return {f"{p}>{d}": ratio.value(self._prior) for (p, d), ratio in latest}

"""Sums over the records: time by phase, tokens by phase, and what each pair handed over."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from common.telemetry.buckets import REQUEST_SECONDS, Buckets
from common.telemetry.timeline import AttemptRecord, TimelineRecord

PAIRS_MAX = 1_024


@dataclass(slots=True)
class PairTotals:
    """What one prefill and one decode worker handed over."""

    handoffs: int = 0
    bytes: int = 0
    #: Milliseconds from the first data of a handoff to its last, summed.
    ms: float = 0.0
    retries: int = 0
    digest_mismatches: int = 0
    failures: int = 0


class Traffic:
    """Sums since the router started."""

    def __init__(self) -> None:
        self.phases: dict[str, Buckets] = {}
        #: By the names of P and D; at most `PAIRS_MAX`, the least recently used is forgotten.
        self.pairs: OrderedDict[tuple[str, str], PairTotals] = OrderedDict()
        #: Requests that were not refused.
        self.requests = 0
        #: Prompt tokens of placed attempts.
        self.computed = 0
        #: Tokens that clients received.
        self.made = 0

    def add(self, record: TimelineRecord) -> None:
        if record.outcome == "refused":
            return
        self.requests += 1
        self.made += record.completion_tokens
        for phase in record.phases:
            if phase.phase not in self.phases:
                self.phases[phase.phase] = Buckets(REQUEST_SECONDS)
            self.phases[phase.phase].observe(phase.ms / 1000)
        for attempt in record.attempts:
            self._add_attempt(attempt)

    def _add_attempt(self, attempt: AttemptRecord) -> None:
        if attempt.decode:
            self.computed += attempt.prompt_tokens
        if not attempt.prefill:
            return
        name = (attempt.prefill, attempt.decode)
        pair = self.pairs.setdefault(name, PairTotals())
        self.pairs.move_to_end(name)
        if len(self.pairs) > PAIRS_MAX:
            self.pairs.popitem(last=False)
        kv = attempt.kv
        if kv is None:
            return
        pair.retries += kv.retries
        pair.digest_mismatches += kv.digest_mismatches
        if not kv.blocks:
            pair.failures += 1
            return
        pair.handoffs += 1
        pair.bytes += kv.payload_bytes
        pair.ms += kv.transfer_ms

"""Sums over the records: time by phase, tokens by phase, and what each pair handed over."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from common.buckets import REQUEST_SECONDS, Buckets
from services.router.timeline.record import Record

PAIRS_MAX = 1_024


@dataclass(slots=True)
class Pair:
    """Of one prefill and one decode worker, by name. `ms`: from first data to last."""

    handoffs: int = 0
    bytes: int = 0
    ms: float = 0.0
    retries: int = 0
    digest_mismatches: int = 0
    failures: int = 0


class Traffic:
    """`pairs`: at most `PAIRS_MAX`, the least recently used forgotten. `computed`, `made`: prompt
    tokens that a prefill was done of, tokens that clients got."""

    def __init__(self) -> None:
        self.phases: dict[str, Buckets] = {}
        self.pairs: OrderedDict[tuple[str, str], Pair] = OrderedDict()
        self.requests = 0
        self.computed = 0
        self.made = 0

    def add(self, record: Record) -> None:
        if record["outcome"] == "refused":
            return
        self.requests += 1
        self.made += record["completion_tokens"]
        for phase in record["phases"]:
            name = phase["phase"]
            if name not in self.phases:
                self.phases[name] = Buckets(REQUEST_SECONDS)
            self.phases[name].observe(phase["ms"] / 1000)
        for attempt in record["attempts"]:
            self._attempt(attempt)

    def _attempt(self, attempt: Record) -> None:
        if attempt["decode"]:
            self.computed += attempt["prompt_tokens"]
        if not attempt["prefill"]:
            return
        name = (attempt["prefill"], attempt["decode"])
        pair = self.pairs.setdefault(name, Pair())
        self.pairs.move_to_end(name)
        if len(self.pairs) > PAIRS_MAX:
            self.pairs.popitem(last=False)
        kv = attempt["kv"]
        if kv is None:
            return
        pair.retries += kv["retries"]
        pair.digest_mismatches += kv["digest_mismatches"]
        if not kv["blocks"]:
            pair.failures += 1
            return
        pair.handoffs += 1
        pair.bytes += kv["payload_bytes"]
        pair.ms += kv["transfer_ms"]

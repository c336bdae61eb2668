"""From the outcomes of a load to the figures of an overload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.overload.offer import Outcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """`good_per_s`: answers that began within the SLO and ended, by when they were asked.
    `attainment`: share of the admitted ones that are good. `refused_*_ms`: until a refusal was
    answered. `without_wait`: refusals (429, 503) that named no `Retry-After`. `next_try`: share of
    obedient second tries that were admitted, None without any. `broken`: neither answered nor
    refused."""

    tries: int
    admitted: int
    good_per_s: float
    attainment: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    refused: dict[str, int]
    refused_p50_ms: float
    refused_p99_ms: float
    without_wait: int
    next_try: float | None
    broken: int


def judge(outcomes: Sequence[Outcome], slo_ms: float, start: float, end: float) -> Verdict:
    """Of the tries made in [start, end), in seconds of the load."""
    seen = [each for each in outcomes if start <= each.at < end]
    admitted = [each for each in seen if each.status == 200]
    good = [e for e in admitted if e.first is not None and e.done and e.first * 1000 <= slo_ms]
    refusals = [each for each in seen if each.status in (429, 503)]
    again = [each for each in outcomes if each.again]
    firsts = [each.first for each in admitted if each.first is not None]
    answered = [each.refused_in for each in refusals if each.refused_in is not None]
    return Verdict(
        tries=len(seen),
        admitted=len(admitted),
        good_per_s=len(good) / (end - start),
        attainment=len(good) / len(admitted) if admitted else 0.0,
        ttft_p50_ms=quantile(firsts, 0.5) * 1000,
        ttft_p99_ms=quantile(firsts, 0.99) * 1000,
        refused=dict(Counter(each.code for each in refusals)),
        refused_p50_ms=quantile(answered, 0.5) * 1000,
        refused_p99_ms=quantile(answered, 0.99) * 1000,
        without_wait=sum(each.retry_after is None for each in refusals),
        next_try=sum(each.status == 200 for each in again) / len(again) if again else None,
        broken=sum(each.status not in (200, 429, 503) for each in seen)
        + sum(each.done is None for each in admitted),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

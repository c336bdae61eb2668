"""From the outcomes of a load to the figures of an overload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.overload.offer import TryOutcome


@dataclass(frozen=True, slots=True)
class OverloadFigures:
    """The figures of an overload."""

    tries: int
    admitted: int
    #: Requests within the SLO per second, by the time at which they were sent.
    good_per_s: float
    #: Share of good requests among the admitted ones.
    attainment: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    #: Refusals by code.
    refused: dict[str, int]
    #: Time to the answer of a refusal.
    refused_p50_ms: float
    refused_p99_ms: float
    #: Refusals (429, 503) without `Retry-After`.
    without_wait: int
    #: Share of second tries that were admitted; None without any.
    next_try: float | None
    #: Requests that were neither answered nor refused.
    broken: int


def summarise(
    outcomes: Sequence[TryOutcome], slo_ms: float, start: float, end: float
) -> OverloadFigures:
    """Of the tries made in [start, end), in seconds of the load."""
    sent = [outcome for outcome in outcomes if start <= outcome.at < end]
    admitted = [outcome for outcome in sent if outcome.status == 200]
    good = [
        outcome
        for outcome in admitted
        if outcome.first is not None and outcome.done and outcome.first * 1000 <= slo_ms
    ]
    refusals = [outcome for outcome in sent if outcome.status in (429, 503)]
    again = [outcome for outcome in outcomes if outcome.again]
    firsts = [outcome.first for outcome in admitted if outcome.first is not None]
    answered = [outcome.refused_in for outcome in refusals if outcome.refused_in is not None]
    return OverloadFigures(
        tries=len(sent),
        admitted=len(admitted),
        good_per_s=len(good) / (end - start),
        attainment=len(good) / len(admitted) if admitted else 0.0,
        ttft_p50_ms=quantile(firsts, 0.5) * 1000,
        ttft_p99_ms=quantile(firsts, 0.99) * 1000,
        refused=dict(Counter(outcome.code for outcome in refusals)),
        refused_p50_ms=quantile(answered, 0.5) * 1000,
        refused_p99_ms=quantile(answered, 0.99) * 1000,
        without_wait=sum(outcome.retry_after is None for outcome in refusals),
        next_try=sum(outcome.status == 200 for outcome in again) / len(again) if again else None,
        broken=sum(outcome.status not in (200, 429, 503) for outcome in sent)
        + sum(outcome.done is None for outcome in admitted),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

"""Computes the figures of a load from its samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo
from loadtest.histogram import Histogram

NAMED_MAX = 5


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles in milliseconds."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one load."""

    requests: int
    ok: int
    failed: int
    #: Requests in flight when the load was stopped.
    unfinished: int
    #: Failed requests by kind of error.
    errors: dict[str, int]
    #: The first message of each kind of error.
    details: list[str]
    seconds: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    #: Good answers per second.
    goodput_rps: float
    #: Share of good answers among all that ended or failed.
    attainment: float
    ttft_ms: Spread
    itl_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    #: Each answer's longest wait for a chunk.
    stall_ms: Spread
    #: How late the client sent. All latencies contain it.
    late_ms: Spread
    #: TTFT as the header `server-timing` gives it.
    server_first_ms: Spread
    #: Answers without usage, or with a wrong number of output tokens.
    usage_wrong: int
    #: Answers whose usage has another prompt length than was sent (token ids only).
    prompt_wrong: int
    #: Refusals without Retry-After.
    refused_without_wait: int


def figures(
    samples: Sequence[Sample], gaps: Histogram, slo: Slo, *, exact_prompts: bool
) -> Figures:
    sent = [sample for sample in samples if sample.sent is not None]
    good_ends = [sample for sample in sent if sample.ok]
    ended = [sample for sample in sent if sample.done is not None]
    seconds = max((sample.done for sample in ended if sample.done is not None), default=0.0)
    failed = [sample for sample in samples if sample.error]
    good = sum(is_good(sample, slo) for sample in good_ends)
    rate = 1 / seconds if seconds else 0.0
    judged = len(good_ends) + len(failed)
    return Figures(
        requests=len(samples),
        ok=len(good_ends),
        failed=len(failed),
        unfinished=len(samples) - judged,
        errors=dict(Counter(sample.error for sample in failed).most_common()),
        details=_details(failed),
        seconds=seconds,
        requests_per_s=len(good_ends) * rate,
        input_tokens_per_s=sum(sample.prompt_tokens or sample.prompt for sample in good_ends)
        * rate,
        output_tokens_per_s=sum(sample.tokens for sample in good_ends) * rate,
        goodput_rps=good * rate,
        attainment=good / judged if judged else 0.0,
        ttft_ms=spread(sample.ttft_ms for sample in sent),
        itl_ms=spread_of(gaps),
        tpot_ms=spread(sample.tpot_ms for sample in good_ends),
        e2e_ms=spread(sample.e2e_ms for sample in good_ends),
        stall_ms=spread(sample.stall * 1000 for sample in good_ends if sample.chunks > 1),
        late_ms=spread(
            (sample.sent - sample.due) * 1000 for sample in sent if sample.sent is not None
        ),
        server_first_ms=spread(sample.server_first_ms for sample in sent),
        usage_wrong=sum(sample.usage_wrong for sample in good_ends),
        prompt_wrong=sum(
            exact_prompts and sample.prompt_tokens not in (None, sample.prompt)
            for sample in good_ends
        ),
        refused_without_wait=sum(
            sample.status in (429, 503) and sample.retry_after is None for sample in failed
        ),
    )


def is_good(sample: Sample, slo: Slo) -> bool:
    """Ended well, within the limits that are set."""
    if not sample.ok or sample.ttft_ms is None:
        return False
    pace = sample.tpot_ms or 0.0
    return sample.ttft_ms <= (slo.ttft_ms or sample.ttft_ms) and pace <= (slo.tpot_ms or pace)


def spread(values: Iterable[float | None]) -> Spread:
    histogram = Histogram()
    for value in values:
        if value is not None:
            histogram.add(value)
    return spread_of(histogram)


def spread_of(histogram: Histogram) -> Spread:
    p50, p90, p99 = (round(histogram.quantile(share), 3) for share in (0.5, 0.9, 0.99))
    return Spread(
        count=histogram.count,
        mean=round(histogram.mean, 3),
        p50=p50,
        p90=p90,
        p99=p99,
        max=round(histogram.most, 3),
    )


def _details(failed: Sequence[Sample]) -> list[str]:
    """The first sentence of each kind of error."""
    first: dict[str, str] = {}
    for sample in failed:
        first.setdefault(sample.error, sample.detail)
    return [f"{error}: {detail}" for error, detail in list(first.items())[:NAMED_MAX]]

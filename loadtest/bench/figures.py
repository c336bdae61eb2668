"""From what clients saw to the figures of a load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from loadtest.bench.samples import Sample
from loadtest.capacity.report import Slo
from loadtest.histogram import Histogram

NAMED_MAX = 5


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """`unfinished`: still open when the load was stopped. `late_ms`: how late this client sent; the
    latencies contain it. `stall_ms`: each answer's longest wait for a chunk.
    `usage_wrong`: answers whose usage was missing or not what they had to make; `prompt_wrong`:
    whose prompt was counted otherwise than sent (token ids only).
    `goodput_rps`: good answers per second; `attainment`: their share of all that were sent.
    `refused_without_wait`: refusals that named no Retry-After."""

    requests: int
    ok: int
    failed: int
    unfinished: int
    errors: dict[str, int]
    details: list[str]
    seconds: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    goodput_rps: float
    attainment: float
    ttft_ms: Spread
    itl_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread
    stall_ms: Spread
    late_ms: Spread
    server_first_ms: Spread
    usage_wrong: int
    prompt_wrong: int
    refused_without_wait: int


def figures(
    samples: Sequence[Sample], gaps: Histogram, slo: Slo, *, exact_prompts: bool
) -> Figures:
    sent = [each for each in samples if each.sent is not None]
    good_ends = [each for each in sent if each.ok]
    ended = [each for each in sent if each.done is not None]
    seconds = max((each.done for each in ended if each.done is not None), default=0.0)
    failed = [each for each in samples if each.error]
    good = sum(is_good(each, slo) for each in good_ends)
    rate = 1 / seconds if seconds else 0.0
    judged = len(good_ends) + len(failed)
    return Figures(
        requests=len(samples),
        ok=len(good_ends),
        failed=len(failed),
        unfinished=len(samples) - judged,
        errors=dict(Counter(each.error for each in failed).most_common()),
        details=_details(failed),
        seconds=seconds,
        requests_per_s=len(good_ends) * rate,
        input_tokens_per_s=sum(each.prompt_tokens or each.prompt for each in good_ends) * rate,
        output_tokens_per_s=sum(each.tokens for each in good_ends) * rate,
        goodput_rps=good * rate,
        attainment=good / judged if judged else 0.0,
        ttft_ms=spread(each.ttft_ms for each in sent),
        itl_ms=spread_of(gaps),
        tpot_ms=spread(each.tpot_ms for each in good_ends),
        e2e_ms=spread(each.e2e_ms for each in good_ends),
        stall_ms=spread(each.stall * 1000 for each in good_ends if each.chunks > 1),
        late_ms=spread((each.sent - each.due) * 1000 for each in sent if each.sent is not None),
        server_first_ms=spread(each.server_first_ms for each in sent),
        usage_wrong=sum(each.usage_wrong for each in good_ends),
        prompt_wrong=sum(
            exact_prompts and each.prompt_tokens not in (None, each.prompt) for each in good_ends
        ),
        refused_without_wait=sum(
            each.status in (429, 503) and each.retry_after is None for each in failed
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
    for each in failed:
        first.setdefault(each.error, each.detail)
    return [f"{error}: {detail}" for error, detail in list(first.items())[:NAMED_MAX]]

"""A result as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from loadtest.bench.figures import Figures, Spread
from loadtest.bench.result import Result
from loadtest.provenance import sentence
from loadtest.slo import shown

LATE_MS_P99 = 20.0
HEAD = f"{'milliseconds':<22}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}{'mean':>10}"


def lines(result: Result) -> Iterator[str]:
    work, all_ = result.workload, result.all
    if result.partial:
        yield f"PARTIAL: {result.partial}"
    asked = f"{work.source}; {work.arrivals}; seed {work.seed}"
    yield f"load        {asked}; {work.model} at {work.url}"
    if work.rows:
        yield f"trace       {work.rows} rows, {work.bad_rows} bad; {work.skipped} too long to send"
        yield from (f"  {named}" for named in work.bad_named)
    yield (
        f"requests    {all_.requests}: {all_.ok} ok, {all_.failed} failed, "
        f"{all_.unfinished} unfinished, in {all_.seconds:.1f} s"
    )
    yield from (f"  {count} x {error}" for error, count in all_.errors.items())
    yield from (f"  e.g. {detail}" for detail in all_.details)
    yield (
        f"throughput  {all_.requests_per_s:.2f} requests/s, {all_.input_tokens_per_s:.0f} tokens/s "
        f"in, {all_.output_tokens_per_s:.0f} out"
    )
    yield (
        f"goodput     {all_.goodput_rps:.2f} requests/s, {all_.attainment:.1%} of all; "
        f"SLO {shown(work.slo)}"
    )
    yield HEAD
    yield from _latencies(all_)
    for name, spread in result.phases.items():
        yield row(f"phase {name}", spread)
    for kind, figures in result.by_kind.items():
        yield f"-- {kind}: {figures.ok} of {figures.requests} ok"
        yield row("TTFT", figures.ttft_ms)
        yield row("TPOT", figures.tpot_ms)
    yield from _warnings(all_)
    yield f"machine     {sentence(result.provenance)}"


def row(name: str, of: Spread) -> str:
    values = (of.p50, of.p90, of.p99, of.max, of.mean)
    return f"{name:<22}" + "".join(f"{value:>10.1f}" for value in values)


def _latencies(of: Figures) -> Iterator[str]:
    yield row("TTFT", of.ttft_ms)
    if of.server_first_ms.count:
        yield row("  of it in the server", of.server_first_ms)
    yield row("ITL", of.itl_ms)
    yield row("TPOT", of.tpot_ms)
    yield row("longest stall", of.stall_ms)
    yield row("E2E", of.e2e_ms)


def _warnings(of: Figures) -> Iterator[str]:
    if of.late_ms.p99 > LATE_MS_P99:
        yield (
            f"note: this client sent up to {of.late_ms.max:.0f} ms late, p99 "
            f"{of.late_ms.p99:.0f} ms; the latencies contain it"
        )
    if of.usage_wrong or of.prompt_wrong:
        yield (
            f"note: usage missing or wrong in {of.usage_wrong} answers, prompts counted otherwise "
            f"than sent in {of.prompt_wrong}"
        )
    if of.refused_without_wait:
        yield f"note: {of.refused_without_wait} refusals named no Retry-After"

"""What each report teaches. Called by `core_requests` when a report was found to be current."""

from __future__ import annotations

from services.router.estimators.estimates import Estimates
from services.router.records import Try, Worker


def computed(estimates: Estimates, worker: Worker, each: Try, now: float) -> None:
    """P's report of `each` is in."""
    report = each.prefill_report
    if report is None or report.error:
        return
    tokens = each.ask.prompt_tokens - report.cached_tokens
    estimates.prefill.ended(worker.name, tokens, report.elapsed_ms / 1000, now)


def started(estimates: Estimates, worker: Worker, each: Try, now: float) -> None:
    """D's report of the first token is in."""
    report = each.decode_report
    if report is None:
        return
    if report.kv is None or not report.kv.complete:
        tokens = each.ask.prompt_tokens - report.cached_tokens
        if each.placement is not None and each.placement.prefill is None:
            estimates.local_prefill.ended(worker.name, tokens, report.elapsed_ms / 1000, now)
        return
    if each.placement is None or each.placement.prefill is None:
        return
    prefill = each.placement.prefill.name
    estimates.moved(prefill, worker.name, report.kv)
    if each.prefill_ended is not None and each.prefill_report is not None:
        tokens = each.ask.prompt_tokens - each.prefill_report.cached_tokens
        size = max(report.kv.payload_bytes, report.kv.raw_bytes)
        computing = estimates.prefill_seconds(tokens, prefill)
        outlasting = estimates.outlasting_seconds(size, computing, prefill, worker.name)
        estimates.handed(now - each.prefill_ended, outlasting)


def ended(estimates: Estimates, worker: Worker, each: Try, now: float) -> None:
    """D's last word of `each` is in, and it is still among the worker's streams."""
    report = each.end_report
    if report is None or report.error or each.placed is None:
        return
    batch = (each.batch + len(worker.decoding) + 1) // 2
    estimates.decoded(batch, report.completion_tokens - 1, report.decode_ms / 1000)
    estimates.output_length.ended(
        each.tenant, each.priority, each.ask.max_tokens, report.completion_tokens
    )
    estimates.stayed(now - each.placed)

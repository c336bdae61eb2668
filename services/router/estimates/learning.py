"""What the estimates learn from each report; `attempt_lifecycle` calls this for current reports."""

from __future__ import annotations

from services.router.estimates.estimates import Estimates
from services.router.records.attempt import Attempt
from services.router.records.worker import Worker


def learn_prefill(estimates: Estimates, worker: Worker, attempt: Attempt, now: float) -> None:
    """P's report of `attempt` is in."""
    report = attempt.prefill_report
    if report is None or report.error:
        return
    tokens = attempt.request.prompt_tokens - report.cached_tokens
    pull, elapsed_ms = report.pull, report.elapsed_ms
    if pull is not None:
        elapsed_ms = max(0.0, elapsed_ms - pull.wait_ms - pull.transfer_ms)
        choice = attempt.placement.pull if attempt.placement is not None else None
        if choice is not None:
            estimates.record_pull(choice.stored.name, worker.name, pull)
    estimates.prefill.ended(worker.name, tokens, elapsed_ms / 1000, now)
    speed = estimates.prefill.speeds.distinct(worker.name)
    worker.speed = worker.speed._replace(prefill=speed)


def learn_first_token(estimates: Estimates, worker: Worker, attempt: Attempt, now: float) -> None:
    """D's report of the first token is in."""
    report = attempt.decode_report
    if report is None:
        return
    if report.kv is None or not report.kv.complete:
        tokens = attempt.request.prompt_tokens - report.cached_tokens
        placement = attempt.placement
        if placement is not None and placement.prefill is None and not attempt.moved_from:
            estimates.local_prefill.ended(worker.name, tokens, report.elapsed_ms / 1000, now)
            if not worker.role.prefills:  # what a mixed worker computes for others tells as much
                speed = estimates.local_prefill.speeds.distinct(worker.name)
                worker.speed = worker.speed._replace(prefill=speed)
        return
    if attempt.placement is None or attempt.placement.prefill is None:
        return
    prefill = attempt.placement.prefill.name
    estimates.record_transfer(prefill, worker.name, report.kv)
    waited = attempt.placement.ahead  # for a slot of D, which is no part of the handoff
    if attempt.prefill_ended is not None and attempt.prefill_report is not None and not waited:
        tokens = attempt.request.prompt_tokens - attempt.prefill_report.cached_tokens
        size = max(report.kv.payload_bytes, report.kv.raw_bytes)
        computing = estimates.prefill_seconds(tokens, prefill)
        exposed = estimates.exposed_transfer_s(size, computing, prefill, worker.name)
        estimates.record_handoff(now - attempt.prefill_ended, exposed)


def learn_end(estimates: Estimates, worker: Worker, attempt: Attempt, now: float) -> None:
    """D's final report of `attempt` is in, and the attempt is still in the worker's batch."""
    report = attempt.end_report
    if report is None or report.error or attempt.placed is None:
        return
    batch = (attempt.batch + len(worker.decoding) + 1) // 2
    made, seconds = report.completion_tokens - 1, report.decode_ms / 1000
    estimates.record_decode(worker.name, batch, made, seconds)
    speeds = estimates.steps.speeds
    worker.speed = worker.speed._replace(step=speeds.distinct(worker.name))
    if speeds.known(worker.name):
        worker.speed = worker.speed._replace(measured=now)
    estimates.output_length.ended(
        attempt.tenant, attempt.priority, attempt.request.max_tokens, report.completion_tokens
    )
    estimates.record_residence(now - attempt.placed)

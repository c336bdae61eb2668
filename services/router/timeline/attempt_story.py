"""What became of one attempt, and why: its phases as the router observed them, and sentences for an
operator."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from common.identity import name_of
from common.messages import KvReport, PrefillEnded
from common.telemetry.timeline import (
    AttemptPhase,
    AttemptRecord,
    CachedTokens,
    CandidateScore,
    Handoff,
    MoveRecord,
    WorkerTimes,
)
from services.router.placement.types import Placement
from services.router.records.attempt import Attempt
from services.router.records.states import TERMINAL, AttemptState


def attempt_records(attempts: Sequence[Attempt], now: float) -> list[AttemptRecord]:
    """Of one request, in the order of their numbers."""
    by_number = {attempt.number: attempt for attempt in attempts}
    return [attempt_record(attempt, now, by_number.get(attempt.number - 1)) for attempt in attempts]


def attempt_record(attempt: Attempt, now: float, before: Attempt | None = None) -> AttemptRecord:
    """The attempt as `explain` shows it at `now`, and as a timeline contains it. `before`: the
    attempt before it, where it is known."""
    placement = attempt.placement
    end = now if attempt.finished is None else attempt.finished
    candidates = placement.candidates if placement else ()
    return AttemptRecord(
        attempt=attempt.number,
        state=attempt.state.value,
        outcome=attempt.outcome,
        received_ms_ago=round((now - attempt.received) * 1000),
        total_ms=_ms(end - attempt.received),
        gateway=name_of(attempt.gateway),
        prompt_tokens=attempt.request.prompt_tokens,
        max_tokens=attempt.request.max_tokens,
        prefill=placement.prefill.name if placement and placement.prefill else "",
        decode=placement.decode.name if placement else "",
        policy=placement.policy if placement else "",
        candidates=tuple(CandidateScore(*candidate) for candidate in candidates),
        move=move_record(attempt, before),
        kv=_handoff(attempt),
        workers_ms=_workers_ms(attempt),
        cached_tokens=_cached_tokens(attempt),
        phases=tuple(_phases(attempt)),
        sentences=tuple(_sentences(attempt, now, before)),
    )


def move_record(attempt: Attempt, before: Attempt | None) -> MoveRecord | None:
    if not attempt.moved_from:
        return None
    report, order = attempt.decode_report, attempt.came_by
    left, tokens = before.finished if before else None, attempt.request.prompt_tokens
    pause = None
    if left is not None and attempt.decode_started is not None:
        pause = _ms(max(0.0, attempt.decode_started - left))
    return MoveRecord(
        reason=attempt.move_reason.value,
        sentence=order.sentence if order is not None else "its worker gave it up",
        source=name_of(attempt.moved_from),
        target=attempt.placement.decode.name if attempt.placement else "",
        tokens=tokens,
        recomputed_tokens=tokens - report.cached_tokens if report is not None else None,
        bytes=report.kv.payload_bytes if report is not None and report.kv is not None else 0,
        pause_ms=pause,
        parked=order is not None and order.parks,
    )


def _handoff(attempt: Attempt) -> Handoff | None:
    report = attempt.decode_report.kv if attempt.decode_report else None
    if report is None:
        return None
    return Handoff(**msgspec.structs.asdict(report), overlap=_overlap(report))


def _workers_ms(attempt: Attempt) -> WorkerTimes:
    prefill, decode = attempt.prefill_report, attempt.decode_report
    remote = decode is not None and decode.kv is not None
    return WorkerTimes(
        prefill=prefill.elapsed_ms if prefill else None,
        kv=decode.kv_ms if decode and remote else None,
        first_token=decode.elapsed_ms if decode else None,
    )


def _cached_tokens(attempt: Attempt) -> CachedTokens:
    prefill, decode = attempt.prefill_report, attempt.decode_report
    return CachedTokens(
        prefill=prefill.cached_tokens if prefill else None,
        decode=decode.cached_tokens if decode else None,
    )


def _overlap(report: KvReport) -> float | None:
    if not report.payload_bytes:
        return None
    return round(report.early_bytes / report.payload_bytes, 4)


def _phases(attempt: Attempt) -> list[AttemptPhase]:
    placed, started, finished = attempt.placed, attempt.decode_started, attempt.finished
    queue_end = finished if placed is None else placed
    phases = [_phase(attempt, "queue", attempt.received, queue_end)]
    if placed is not None:
        if attempt.placement is not None and attempt.placement.prefill is not None:
            end = _first(attempt.prefill_ended, started, finished)
            phases.append(_phase(attempt, "prefill", placed, end))
        phases.append(_phase(attempt, "first_token", placed, _first(started, finished)))
    if started is not None:
        phases.append(_phase(attempt, "decode", started, finished))
    return phases


def _phase(attempt: Attempt, name: str, start: float, end: float | None) -> AttemptPhase:
    end_ms = None if end is None else _ms(end - attempt.received)
    return AttemptPhase(name, _ms(start - attempt.received), end_ms)


def _first(*instants: float | None) -> float | None:
    return next((instant for instant in instants if instant is not None), None)


def _sentences(attempt: Attempt, now: float, before: Attempt | None) -> list[str]:
    sentences = [_move(attempt, before), _queue(attempt, now)]
    if attempt.placement is not None:
        sentences.append(f"placed by {attempt.placement.policy}: {attempt.placement.sentence}")
    sentences += _prefill(attempt)
    sentences += _first_token(attempt)
    sentences.append(_budget(attempt))
    sentences += [_copies_used(attempt), _copies_made(attempt)]
    sentences.append(_end(attempt))
    return [sentence for sentence in sentences if sentence]


def _move(attempt: Attempt, before: Attempt | None) -> str:
    move = move_record(attempt, before)
    if move is None:
        return ""
    left = "was parked, and left" if move.parked else "left"
    why = f"{move.sentence} ({move.reason})"
    sentence = f"it {left} {move.source} after {move.tokens} tokens: {why}"
    order = attempt.came_by
    if order is not None and order.copied_blocks is not None:
        there = f"{order.copied_blocks} full blocks were copied to {name_of(order.copy_to)} before"
        sentence = f"{sentence}; {there}"
    if move.recomputed_tokens is None:
        return sentence
    pause = "" if move.pause_ms is None else f" after a pause of {move.pause_ms} ms"
    return (
        f"{sentence}; it went on at {move.target}{pause}, with {move.bytes} bytes of KV, and "
        f"{move.recomputed_tokens} tokens computed again"
    )


def _queue(attempt: Attempt, now: float) -> str:
    if attempt.placed is not None:
        return f"queued for {_ms(attempt.placed - attempt.received)} ms"
    end = now if attempt.finished is None else attempt.finished
    waited = f"queued for {_ms(end - attempt.received)} ms"
    return f"{waited}, waiting for {attempt.waits_for.value}" if attempt.waits_for else waited


def _prefill(attempt: Attempt) -> list[str]:
    report, placement = attempt.prefill_report, attempt.placement
    if placement is None or placement.prefill is None:
        return []
    if attempt.prefill_problem:
        return [f"{attempt.prefill_problem}; {placement.decode.name} computes the prompt itself"]
    if report is None:
        return []
    sentence = (
        f"{placement.prefill.name} computed the prompt in {report.elapsed_ms:.1f} ms "
        f"({report.cached_tokens} of {attempt.request.prompt_tokens} tokens were cached)"
    )
    return [sentence, *_pull(placement, report)]


def _pull(placement: Placement, report: PrefillEnded) -> list[str]:
    choice, pull = placement.pull, report.pull
    if choice is None or placement.prefill is None:
        return []
    stored = choice.stored
    names = f"{placement.prefill.name} pulled", f"out of the {stored.medium} of {stored.name}"
    if report.pull_failed:
        return [f"{names[0]} nothing {names[1]} and computed it: {report.pull_failed}"]
    if pull is None:
        return []
    sentence = (
        f"{names[0]} {pull.blocks} KV blocks, {pull.payload_bytes} bytes, {names[1]}: "
        f"{pull.wait_ms:.1f} ms until data came, {pull.transfer_ms:.1f} ms of data"
    )
    return [sentence]


def _first_token(attempt: Attempt) -> list[str]:
    report, placement = attempt.decode_report, attempt.placement
    if report is None or placement is None:
        return []
    sentences = []
    if report.kv is not None:
        kv = report.kv
        retries = f", {kv.retries} retries" if kv.retries else ""
        sentences.append(
            f"the handoff moved {kv.blocks} KV blocks, {kv.payload_bytes} bytes in {kv.messages} "
            f"messages: {kv.wait_ms:.1f} ms until data came, {kv.transfer_ms:.1f} ms of data"
            f"{retries}"
        )
        if not kv.complete:
            sentences.append("not all of it came: decode computed the rest itself")
        if kv.drafter_cold:
            source = placement.prefill.name if placement.prefill else name_of(attempt.moved_from)
            sentences.append(
                f"the drafter of {placement.decode.name} starts cold: {source} handed over none of "
                "its KV"
            )
        if kv.compression:
            sentences.append(
                f"compressed {kv.compression}: {kv.raw_bytes} bytes became {kv.payload_bytes}"
            )
        if kv.element and placement.prefill is not None:
            prefill, decode = placement.prefill, placement.decode
            sentences.append(
                f"the KV was converted: {prefill.name} computes in {prefill.kv_element}, "
                f"{decode.name} in {decode.kv_element}, and it travelled as {kv.element}"
            )
        overlap = _overlap(kv)
        if overlap is not None:
            sentences.append(f"{overlap:.0%} of the bytes were sent before the prefill ended")
    sentences.append(
        f"{placement.decode.name} made the first token {report.elapsed_ms:.1f} ms after it was "
        f"asked; {report.cached_tokens} of {attempt.request.prompt_tokens} prompt tokens were not "
        "computed there"
    )
    return sentences


def _budget(attempt: Attempt) -> str:
    if not attempt.budget_bytes:
        return ""
    total, promised = attempt.request.total_tokens, attempt.request.promised_tokens
    more = f", the last of {attempt.grants + 1} budgets there" if attempt.grants else ""
    return (
        f"its KV budget is {attempt.budget_bytes / (1 << 20):g} MiB: it was promised KV for "
        f"{promised} of {total} tokens{more}"
    )


def _copies_used(attempt: Attempt) -> str:
    """Of an attempt that goes on after another, whose blocks were copied."""
    report, placement, tokens = (
        attempt.decode_report,
        attempt.placement,
        attempt.request.prompt_tokens,
    )
    if not attempt.copies_at or placement is None:
        return ""
    holder = name_of(attempt.copies_at)
    there = placement.decode.identity == attempt.copies_at
    pulls = placement.pull is not None and placement.pull.stored.identity == attempt.copies_at
    if not there and not pulls:
        return f"copies of its blocks are at {holder}, and it did not go on from them"
    if report is None:
        return f"it is to go on from the copies of its blocks at {holder}"
    return (
        f"it went on from the copies of its blocks at {holder}: {report.cached_tokens} of {tokens} "
        f"tokens were there, {tokens - report.cached_tokens} were computed again"
    )


def _copies_made(attempt: Attempt) -> str:
    if not attempt.holder:
        return ""
    holder, progress = name_of(attempt.holder), attempt.checkpoint
    if progress is None:
        return f"copies of its blocks go to {holder}"
    copied = f"{progress.held} of its {progress.blocks} full blocks"
    return f"{holder} had copies of {copied} at the last report"


def _end(attempt: Attempt) -> str:
    report = attempt.end_report
    if attempt.state not in TERMINAL:
        return f"now {attempt.state.value}" + (f": {attempt.sentence}" if attempt.sentence else "")
    if attempt.state is AttemptState.ENDED and report is not None:
        pace = ""
        if report.completion_tokens > 1:
            itl = report.decode_ms / (report.completion_tokens - 1)
            pace = f", {itl:.2f} ms each after the first"
        return f"ended ({attempt.outcome}) with {report.completion_tokens} tokens{pace}"
    made = f" after {report.completion_tokens} tokens" if report else ""
    order = attempt.leaves_by
    if order is not None and attempt.moving:
        what = "parked" if order.parks else "told to move"
        made += f", when it was {what} ({order.reason.value})"
    return (
        f"{attempt.state.value} ({attempt.outcome}){made}: {attempt.sentence or 'no reason given'}"
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)

"""What became of one attempt, and why: phases as the router saw them, and sentences for people.

Phases are milliseconds since the router received the attempt. No prompt or completion text is ever
known here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from common.messages import KvReport
from services.router.records import Try
from services.router.state import TERMINAL, TryState


def attempt_of(each: Try, now: float) -> dict[str, Any]:
    """One attempt, as `explain` shows it and the timeline's line holds it."""
    placement = each.placement
    end = now if each.finished is None else each.finished
    return {
        "attempt": each.attempt,
        "state": each.state.value,
        "outcome": each.outcome,
        "received_ms_ago": round((now - each.received) * 1000),
        "total_ms": _ms(end - each.received),
        "gateway": each.gateway.rpartition("|")[0],
        "prompt_tokens": each.ask.prompt_tokens,
        "max_tokens": each.ask.max_tokens,
        "prefill": placement.prefill.name if placement and placement.prefill else "",
        "decode": placement.decode.name if placement else "",
        "policy": placement.policy if placement else "",
        "candidates": [c._asdict() for c in placement.candidates] if placement else [],
        "kv": _kv(each),
        "workers_ms": _workers_ms(each),
        "cached_tokens": _cached_tokens(each),
        "phases": _phases(each),
        "sentences": _sentences(each, now),
    }


def _kv(each: Try) -> dict[str, Any] | None:
    """`overlap`: share of the bytes that left before the prefill ended, None when none moved."""
    report = each.decode_report.kv if each.decode_report else None
    if report is None:
        return None
    fields: dict[str, Any] = msgspec.to_builtins(report)
    return {**fields, "overlap": _overlap(report)}


def _workers_ms(each: Try) -> dict[str, float | None]:
    """By the workers' own clocks, since each was asked: when P had computed the prompt, when D had
    P's KV, when D had the first token. None: it did not, or has not yet."""
    computed, started = each.prefill_report, each.decode_report
    remote = started is not None and started.kv is not None
    return {
        "prefill": computed.elapsed_ms if computed else None,
        "kv": started.kv_ms if started and remote else None,
        "first_token": started.elapsed_ms if started else None,
    }


def _cached_tokens(each: Try) -> dict[str, int | None]:
    """By worker, tokens of the prompt that it did not compute; with a prefill worker, decode's are
    those that were handed over, too. None: it has not told."""
    computed, started = each.prefill_report, each.decode_report
    return {
        "prefill": computed.cached_tokens if computed else None,
        "decode": started.cached_tokens if started else None,
    }


def _overlap(report: KvReport) -> float | None:
    if not report.payload_bytes:
        return None
    return round(report.early_bytes / report.payload_bytes, 4)


def _phases(each: Try) -> list[dict[str, Any]]:
    """`end_ms` None: still in it."""
    placed, started, over = each.placed, each.decode_started, each.finished
    phases = [_phase(each, "queue", each.received, over if placed is None else placed)]
    if placed is not None:
        if each.placement is not None and each.placement.prefill is not None:
            phases.append(
                _phase(each, "prefill", placed, _first(each.prefill_ended, started, over))
            )
        phases.append(_phase(each, "first_token", placed, _first(started, over)))
    if started is not None:
        phases.append(_phase(each, "decode", started, over))
    return phases


def _phase(each: Try, name: str, start: float, end: float | None) -> dict[str, Any]:
    return {
        "phase": name,
        "start_ms": _ms(start - each.received),
        "end_ms": None if end is None else _ms(end - each.received),
    }


def _first(*instants: float | None) -> float | None:
    return next((instant for instant in instants if instant is not None), None)


def _sentences(each: Try, now: float) -> list[str]:
    told = [_queue(each, now)]
    if each.placement is not None:
        told.append(f"placed by {each.placement.policy}: {each.placement.sentence}")
    told += _prefill(each)
    told += _first_token(each)
    told.append(_end(each))
    return [sentence for sentence in told if sentence]


def _queue(each: Try, now: float) -> str:
    if each.placed is not None:
        return f"queued for {_ms(each.placed - each.received)} ms"
    end = now if each.finished is None else each.finished
    waited = f"queued for {_ms(end - each.received)} ms"
    return f"{waited}, waiting for {each.waits_for.value}" if each.waits_for else waited


def _prefill(each: Try) -> list[str]:
    report, placement = each.prefill_report, each.placement
    if placement is None or placement.prefill is None:
        return []
    if each.prefill_problem:
        return [f"{each.prefill_problem}; {placement.decode.name} computes the prompt itself"]
    if report is None:
        return []
    sentence = (
        f"{placement.prefill.name} computed the prompt in {report.elapsed_ms:.1f} ms "
        f"({report.cached_tokens} of {each.ask.prompt_tokens} tokens were cached)"
    )
    return [sentence]


def _first_token(each: Try) -> list[str]:
    report, placement = each.decode_report, each.placement
    if report is None or placement is None:
        return []
    told = []
    if report.kv is not None:
        kv = report.kv
        retries = f", {kv.retries} retries" if kv.retries else ""
        told.append(
            f"the handoff moved {kv.blocks} KV blocks, {kv.payload_bytes} bytes in {kv.messages} "
            f"messages: {kv.wait_ms:.1f} ms until data came, {kv.transfer_ms:.1f} ms of data"
            f"{retries}"
        )
        if not kv.complete:
            told.append("not all of it came: decode computed the rest itself")
        if kv.compression:
            told.append(
                f"compressed {kv.compression}: {kv.raw_bytes} bytes became {kv.payload_bytes}"
            )
        overlap = _overlap(kv)
        if overlap is not None:
            told.append(f"{overlap:.0%} of the bytes were sent before the prefill ended")
    told.append(
        f"{placement.decode.name} made the first token {report.elapsed_ms:.1f} ms after it was "
        f"asked; {report.cached_tokens} of {each.ask.prompt_tokens} prompt tokens were not "
        "computed there"
    )
    return told


def _end(each: Try) -> str:
    report = each.end_report
    if each.state not in TERMINAL:
        return f"now {each.state.value}" + (f": {each.sentence}" if each.sentence else "")
    if each.state is TryState.ENDED and report is not None:
        pace = ""
        if report.completion_tokens > 1:
            itl = report.decode_ms / (report.completion_tokens - 1)
            pace = f", {itl:.2f} ms each after the first"
        return f"ended ({each.outcome}) with {report.completion_tokens} tokens{pace}"
    made = f" after {report.completion_tokens} tokens" if report else ""
    return f"{each.state.value} ({each.outcome}){made}: {each.sentence or 'no reason given'}"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)

"""From a request's legs, which its gateway measured, to phases that say what was done in them.

Theory of operation: the gateway's legs are authoritative: they are consecutive, on one clock, from
the first byte to the last. The router and the workers report durations on clocks of their own.
These only divide the time between submission and first token, and each is clamped to what is left
of it, so that the phases still sum to the whole. An attempt that made no token and was followed by
another is one `retry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from common.identity import name_of
from common.messages import Leg
from common.telemetry.timeline import Phase
from services.router.records.attempt import Attempt

WAITS = ("queue", "placed")


def phases_of(legs: Sequence[Leg], attempts: Mapping[int, Attempt]) -> list[Phase]:
    """`attempts`: those that are known, by number."""
    phases: list[Phase] = []
    start = 0.0
    for name, number, worker, ms in _parts(legs, attempts):
        phases.append(Phase(name, number, worker, round(start, 3), round(ms, 3)))
        start += ms
    return phases


_Part = tuple[str, int, str, float]


def _parts(legs: Sequence[Leg], attempts: Mapping[int, Attempt]) -> Iterator[_Part]:
    last = legs[-1].attempt if legs else 0
    decoded = {leg.attempt for leg in legs if leg.name == "decode"}
    for (waits, number), group in groupby(legs, lambda leg: (leg.name in WAITS, leg.attempt)):
        attempt = attempts.get(number)
        if waits:
            stretch = sum(leg.ms for leg in group)
            yield from _until_token(
                stretch, number, attempt, made_token=number in decoded, last=number == last
            )
            continue
        for leg in group:
            worker = _decode_name(attempt) if leg.name == "decode" else ""
            yield leg.name, number, worker, leg.ms


def _until_token(
    stretch: float, number: int, attempt: Attempt | None, *, made_token: bool, last: bool
) -> Iterator[_Part]:
    queued, rest = _take(stretch, stretch if attempt is None else _queued_ms(attempt, stretch))
    yield "queue", number, "", queued
    if attempt is None or attempt.placement is None:
        return
    decode = _decode_name(attempt)
    if not made_token:
        yield ("first_token" if last else "retry"), number, decode, rest
        return
    started = attempt.decode_report
    if attempt.moved_from and started is not None and started.kv is not None:
        came, rest = _take(rest, started.kv_ms)
        yield "transfer", number, f"{name_of(attempt.moved_from)}>{decode}", came
        yield "first_token", number, decode, rest
        return
    if attempt.placement.prefill is None:
        yield "prefill", number, decode, rest
        return
    prefill = attempt.placement.prefill.name
    report = attempt.prefill_report
    computed, rest = _take(rest, report.elapsed_ms if report is not None else 0.0)
    yield "prefill", number, prefill, computed
    if attempt.placement.ahead and started is not None and started.kv is not None:
        asked = started.kv_ms - started.kv.wait_ms - started.kv.transfer_ms
        waited, rest = _take(rest, asked - computed)
        yield "slot", number, decode, waited
        computed += waited
    moved, rest = _take(rest, started.kv_ms - computed if started is not None else 0.0)
    yield "transfer", number, f"{prefill}>{decode}", moved
    yield "first_token", number, decode, rest


def _take(left: float, wanted: float) -> tuple[float, float]:
    """Splits `left` into at most `wanted` and the rest."""
    taken = min(left, max(0.0, wanted))
    return taken, left - taken


def _queued_ms(attempt: Attempt, stretch: float) -> float:
    return stretch if attempt.placed is None else (attempt.placed - attempt.received) * 1000


def _decode_name(attempt: Attempt | None) -> str:
    return (
        attempt.placement.decode.name
        if attempt is not None and attempt.placement is not None
        else ""
    )


def legs_of(attempts: Sequence[Attempt]) -> list[Leg]:
    """The legs as the router observed them, oldest attempt first: for a request without a summary,
    because its gateway died or because the router refused the request at once."""
    legs: list[Leg] = []
    before: float | None = None
    for attempt in attempts:
        if attempt.finished is None:
            continue
        if before is not None:
            legs.append(_leg("recovery", attempt, before, attempt.received))
        placed = attempt.finished if attempt.placed is None else attempt.placed
        started = attempt.finished if attempt.decode_started is None else attempt.decode_started
        legs.append(_leg("queue", attempt, attempt.received, placed))
        if attempt.placed is not None:
            legs.append(_leg("placed", attempt, placed, started))
        if attempt.decode_started is not None:
            legs.append(_leg("decode", attempt, started, attempt.finished))
        before = attempt.finished
    return legs


def _leg(name: str, attempt: Attempt, start: float, end: float) -> Leg:
    return Leg(name, attempt.number, max(0.0, end - start) * 1000)

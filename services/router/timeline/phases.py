"""From a request's legs, which its gateway measured, to phases that say what was done in them.

Theory of operation: the gateway's legs are the truth about time: consecutive, on one clock, from
the first byte to the last. What the router and the workers reported are durations, on clocks of
their own; they only divide the stretch between submission and first token, each clamped to what is
left of it, so that phases still sum to the whole. An attempt that never made a token, and was
followed by another, is one `retry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from common.messages import Leg
from services.router.records import Try

WAITS = ("queue", "placed")


class Phase(NamedTuple):
    """`worker`: who worked on it, `p0>d0` for a transfer, empty for nobody."""

    phase: str
    attempt: int
    worker: str
    start_ms: float
    ms: float


def phases(legs: Sequence[Leg], tries: Mapping[int, Try]) -> list[Phase]:
    """`tries` by attempt, those that are known."""
    told: list[Phase] = []
    start = 0.0
    for name, attempt, worker, ms in _parts(legs, tries):
        told.append(Phase(name, attempt, worker, round(start, 3), round(ms, 3)))
        start += ms
    return told


_Part = tuple[str, int, str, float]


def _parts(legs: Sequence[Leg], tries: Mapping[int, Try]) -> Iterator[_Part]:
    last = legs[-1].attempt if legs else 0
    decoded = {leg.attempt for leg in legs if leg.name == "decode"}
    for (waits, attempt), group in groupby(legs, lambda leg: (leg.name in WAITS, leg.attempt)):
        each = tries.get(attempt)
        if waits:
            stretch = sum(leg.ms for leg in group)
            yield from _until_token(
                stretch, attempt, each, spoke=attempt in decoded, last=attempt == last
            )
            continue
        for leg in group:
            worker = _decode_name(each) if leg.name == "decode" else ""
            yield leg.name, attempt, worker, leg.ms


def _until_token(
    stretch: float, attempt: int, each: Try | None, *, spoke: bool, last: bool
) -> Iterator[_Part]:
    queued, rest = _take(stretch, stretch if each is None else _queued_ms(each, stretch))
    yield "queue", attempt, "", queued
    if each is None or each.placement is None:
        return
    decode = _decode_name(each)
    if not spoke:
        yield ("first_token" if last else "retry"), attempt, decode, rest
        return
    if each.placement.prefill is None:
        yield "prefill", attempt, decode, rest
        return
    prefill = each.placement.prefill.name
    report, started = each.prefill_report, each.decode_report
    computed, rest = _take(rest, report.elapsed_ms if report is not None else 0.0)
    yield "prefill", attempt, prefill, computed
    moved, rest = _take(rest, started.kv_ms - computed if started is not None else 0.0)
    yield "transfer", attempt, f"{prefill}>{decode}", moved
    yield "first_token", attempt, decode, rest


def _take(left: float, wanted: float) -> tuple[float, float]:
    """What is taken of what is left, and the rest."""
    taken = min(left, max(0.0, wanted))
    return taken, left - taken


def _queued_ms(each: Try, stretch: float) -> float:
    return stretch if each.placed is None else (each.placed - each.received) * 1000


def _decode_name(each: Try | None) -> str:
    return each.placement.decode.name if each is not None and each.placement is not None else ""


def legs_of(tries: Sequence[Try]) -> list[Leg]:
    """The legs as the router saw them, oldest attempt first: for a request whose gateway did not
    tell, because it died or because the router refused it at once."""
    legs: list[Leg] = []
    before: float | None = None
    for each in tries:
        if each.finished is None:
            continue
        if before is not None:
            legs.append(_leg("recovery", each, before, each.received))
        placed = each.finished if each.placed is None else each.placed
        started = each.finished if each.decode_started is None else each.decode_started
        legs.append(_leg("queue", each, each.received, placed))
        if each.placed is not None:
            legs.append(_leg("placed", each, placed, started))
        if each.decode_started is not None:
            legs.append(_leg("decode", each, started, each.finished))
        before = each.finished
    return legs


def _leg(name: str, each: Try, start: float, end: float) -> Leg:
    return Leg(name, each.attempt, max(0.0, end - start) * 1000)

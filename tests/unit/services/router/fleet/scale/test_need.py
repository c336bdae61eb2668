"""How many workers a model needs: tables of loads and fleets."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import ScaleConfig
from common.messages import Role
from services.router.fleet.balance.goodput import Curves, Split
from services.router.fleet.balance.mix import Mix
from services.router.fleet.scale.need import (
    Fleet,
    Loads,
    Need,
    fewer,
    loads,
    more,
    without_decode,
)

P, D = Role.PREFILL, Role.DECODE
CONFIG = ScaleConfig(mode="on", out="a", in_="b", busy_max=0.8, busy_min=0.5, workers_max=6)
#: A prompt of 1,000 tokens takes a second, a step of 10 streams 20 ms.
CURVES = Curves(lambda tokens: tokens / 1_000, lambda batch: 0.02, lambda tokens: 0.0, 10, 10_000)


def fleet(prefills: int, decodes: int, **more: Any) -> Fleet:
    split = Split(prefills, decodes)
    about: dict[str, Any] = {
        "split": split,
        "here": split,
        "busy": Split(0, 0),
        "running": 0,
        "slots": 10 * decodes,
        "separate": True,
        "floor": 1,
        "asked": False,
        "idle": False,
    }
    return Fleet(**about | more)


def out(role: Role, workers: int) -> Need:
    return Need(out=True, role=role, workers=workers)


def less(role: Role) -> Need:
    return Need(out=False, role=role, workers=1)


def test_loads_are_in_workers() -> None:
    mix = Mix(requests=100, rate=3.0, prompt=1_000, output=50, kv=1_000)
    apart = loads(mix, CURVES, lambda tokens: tokens / 500, separate=True)
    assert apart == pytest.approx((3.0, 0.3))
    together = loads(mix, CURVES, lambda tokens: tokens / 500, separate=False)
    assert together == pytest.approx((0.0, 3.0 * (2.0 + 0.1)))


@pytest.mark.parametrize(
    ("workers", "windows", "need"),
    [
        ((2, 2), [(1.6, 1.0), (1.6, 1.0)], None),
        ((2, 2), [(1.7, 1.0), (1.7, 1.0)], out(P, 1)),
        ((2, 2), [(3.3, 1.0), (3.3, 1.0)], out(P, 3)),
        ((2, 2), [(3.3, 1.0), (1.5, 1.0)], None),
        ((2, 2), [(1.5, 1.0), (3.3, 1.0)], None),
        ((2, 2), [(1.7, 2.5), (1.7, 2.5)], out(D, 2)),
        ((2, 2), [(9.9, 1.0), (9.9, 1.0)], out(P, 4)),
        ((6, 2), [(9.9, 1.0), (9.9, 1.0)], None),
        ((0, 2), [(0.0, 1.0)], out(P, 1)),
        ((2, 0), [(9.0, 9.0), (9.0, 9.0)], out(P, 4)),
    ],
)
def test_more(
    workers: tuple[int, int], windows: list[tuple[float, float]], need: Need | None
) -> None:
    found, sentence = more(fleet(*workers), [Loads(*one) for one in windows], CONFIG)
    assert found == need
    assert bool(sentence) is (need is not None or workers == (6, 2))


def test_those_that_are_here_and_not_ready_count_against_the_most() -> None:
    crowded = fleet(2, 2, here=Split(5, 2))
    need, _ = more(crowded, [Loads(9.0, 1.0), Loads(9.0, 1.0)], CONFIG)
    assert need == out(P, 1)


@pytest.mark.parametrize(
    ("given", "windows", "need"),
    [
        (fleet(3, 2), [(0.9, 0.9), (0.9, 0.9)], less(P)),
        (fleet(3, 2), [(1.0, 0.9), (1.0, 0.9)], None),
        (fleet(3, 2), [(0.9, 0.9), (1.1, 0.9)], None),
        (fleet(3, 2), [(1.1, 0.9), (0.9, 0.9)], None),
        (fleet(1, 3), [(0.1, 0.9), (0.1, 0.9)], less(D)),
        (fleet(1, 3, floor=3), [(0.1, 0.9), (0.1, 0.9)], None),
        (fleet(1, 3, running=11), [(0.1, 0.9), (0.1, 0.9)], None),
        (fleet(1, 3, running=10), [(0.1, 0.9), (0.1, 0.9)], less(D)),
        (fleet(3, 1, busy=Split(3, 0)), [(0.9, 0.1), (0.9, 0.1)], None),
        (fleet(1, 1), [(0.0, 0.0), (0.0, 0.0)], None),
        (fleet(1, 1, floor=0), [(0.0, 0.0), (0.0, 0.0)], None),
        (fleet(1, 1, floor=0, idle=True), [], less(P)),
        (fleet(0, 1, floor=0, idle=True), [], less(D)),
        (fleet(2, 1, idle=True), [], less(P)),
        (fleet(1, 2, idle=True, floor=2), [], None),
        (fleet(3, 3), [], None),
    ],
)
def test_fewer(given: Fleet, windows: list[tuple[float, float]], need: Need | None) -> None:
    found, sentence = fewer(given, [Loads(*one) for one in windows], CONFIG)
    assert found == need
    assert bool(sentence) is (need is not None)


def test_a_model_without_decode_workers_needs_one_when_somebody_asks() -> None:
    assert without_decode(fleet(0, 0, asked=True)) == out(D, 1)
    assert without_decode(fleet(0, 0)) is None
    assert without_decode(fleet(0, 0, asked=True, here=Split(0, 1))) is None

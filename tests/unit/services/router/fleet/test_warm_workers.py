"""When a warm worker is woken, and when it sleeps again."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.fleet.warm_workers import WAKE_SECONDS, WarmWorker, choose

ASLEEP = WarmWorker("d1", asleep=True)
AWAKE = WarmWorker("d1", asleep=False, idle_s=90.0)


def chosen(*workers: WarmWorker, **more: Any) -> str:
    """The order and its reason; empty = none."""
    figures: dict[str, Any] = {"awake": 1, "floor": 1, "queue_s": 0.0, "idle_max_s": 60.0}
    wanted = choose(workers, **figures | more)
    return "" if wanted is None else f"{wanted.name} {wanted.on}: {wanted.sentence}"


@pytest.mark.parametrize(
    ("workers", "figures", "says"),
    [
        ((ASLEEP,), {}, ""),
        ((ASLEEP,), {"queue_s": WAKE_SECONDS}, ""),
        (
            (ASLEEP,),
            {"queue_s": 1.5},
            "d1 True: the queue takes 1.50 s and waking takes 1.00 s",
        ),
        (
            (ASLEEP._replace(wake_s=0.25),),
            {"queue_s": 0.3},
            "d1 True: the queue takes 0.30 s and waking takes 0.25 s",
        ),
        ((ASLEEP._replace(wake_s=2.0),), {"queue_s": 1.5}, ""),
        (
            (ASLEEP,),
            {"awake": 0},
            "d1 True: 0 of the 1 decode workers that stay awake are there",
        ),
        ((ASLEEP._replace(waking=True),), {"awake": 0, "queue_s": 9.0}, ""),
    ],
)
def test_it_is_woken_for_a_long_queue_or_for_the_floor(
    workers: tuple[WarmWorker, ...], figures: dict[str, Any], says: str
) -> None:
    assert chosen(*workers, **figures) == says


def test_one_at_a_time_is_woken_for_the_queue_and_all_that_lack_for_the_floor() -> None:
    waking, second = ASLEEP._replace(waking=True), ASLEEP._replace(name="d2")
    assert chosen(waking, second, queue_s=9.0) == ""
    assert chosen(waking, second, awake=0, floor=1) == ""
    assert chosen(waking, second, awake=0, floor=2).startswith("d2 True: 0 of the 2")


@pytest.mark.parametrize(
    ("worker", "figures", "says"),
    [
        (AWAKE, {"awake": 2}, "d1 False: it had nothing to do for 90 s"),
        (AWAKE, {"awake": 2, "idle_max_s": 91.0}, ""),
        (AWAKE, {"awake": 1}, ""),
        (AWAKE, {"awake": 2, "floor": 2}, ""),
        (AWAKE, {"awake": 2, "queue_s": 0.1}, ""),
        (AWAKE._replace(idle_s=0.0), {"awake": 2}, ""),
    ],
)
def test_it_sleeps_when_idle_and_above_the_floor(
    worker: WarmWorker, figures: dict[str, Any], says: str
) -> None:
    assert chosen(worker, **figures) == says


def test_none_falls_asleep_while_another_wakes() -> None:
    assert chosen(AWAKE, ASLEEP._replace(name="d2", waking=True), awake=3) == ""

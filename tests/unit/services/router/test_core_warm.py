"""Warm decode workers: they get nothing while they sleep, and wake when their model needs them."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import (
    Beat,
    Decode,
    Fleet,
    Introduce,
    Load,
    Role,
    Wake,
    WarmState,
)
from services.router.admin.verb import View
from services.router.admin.verbs import status, workers
from services.router.events import DrainStarted, Note, WorkerDrained
from services.router.metrics.router import RouterMetrics
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.scraped import scraped

NAMES = ("chat", "code")
IDLE = Load()
WARM_EVENTS = ("worker.asleep", "worker.woken")


def says(rig: Rig, name: str, *, asleep: bool, load: Load = IDLE, wake_ms: float = 0.0) -> None:
    rig.receive(f"{name}|1", Beat(load=load, warm=WarmState(asleep=asleep, wake_ms=wake_ms)))


def with_warm(*, awake: bool = True, **settings: Any) -> Rig:
    """One gateway, and for each model a D; for `code` besides the warm `w0`, which sleeps. Without
    `awake` that is all that `code` has."""
    rig = Rig(models=NAMES, **settings)
    rig.gateway()
    rig.decode("d-chat", model="chat")
    if awake:
        rig.decode("d-code", model="code", seqs=3)
    rig.receive("w0|1", worker_hello(Role.DECODE, "w0", model="code", seqs=2))
    says(rig, "w0", asleep=True)
    rig.sent.clear()
    return rig


def keep_alive(rig: Rig, seconds: float, **warm: Any) -> None:
    """All beat; `w0` says that it is as in `warm`."""
    for _ in range(max(1, round(seconds / 0.4))):
        for peer in ("d-chat|1", "d-code|1", "g0|1"):
            if peer in rig.core.peers():
                rig.beat(peer)
        says(rig, "w0", **({"asleep": True} | warm))
        rig.tick(0.4)


def orders(rig: Rig) -> list[bool]:
    return [message.on for message in rig.take(Wake, "w0|1")]


def measured(rig: Rig) -> None:
    """A request for `code` took two seconds on its D."""
    rig.submit("before", model="code")
    rig.started("before", peer="d-code|1", kv=None)
    rig.now += 2.0
    rig.ended("before", peer="d-code|1")
    rig.sent.clear()


def crowd(rig: Rig, count: int, model: str = "code") -> None:
    for number in range(count):
        rig.submit(f"{model}{number}", model=model)


def test_a_worker_that_sleeps_is_there_and_gets_nothing() -> None:
    rig = with_warm()
    crowd(rig, 4)
    assert {send.peer for send in rig.sent if isinstance(send.message, Decode)} == {"d-code|1"}
    assert rig.core.queued == 2
    told = status.run(View(rig.core.shared, rig.now, {}), {})
    assert [(m.model, m.decode_ready, m.decode_warm) for m in told.models] == [
        ("chat", 1, 0),
        ("code", 1, 1),
    ]
    rows = {row.name: row.state for row in workers.run(View(rig.core.shared, 0, {}), {"role": ""})}
    assert (rows["w0"], rows["d-code"]) == ("warm", "ready")
    page = scraped(RouterMetrics(lambda: View(rig.core.shared, rig.now, {})).collect())
    assert 'baton_router_model_workers_warm{model="code"} 1.0' in page


def test_it_is_woken_when_the_queue_takes_longer_than_waking_and_then_serves() -> None:
    rig = with_warm()
    measured(rig)
    crowd(rig, 2)
    keep_alive(rig, 0.4)
    assert orders(rig) == [], "nothing waits"
    crowd(rig, 9)
    keep_alive(rig, 0.4)
    assert orders(rig) == [True]
    rig.sent.clear()
    says(rig, "w0", asleep=False, wake_ms=20.0)
    assert {send.peer for send in rig.sent if isinstance(send.message, Decode)} == {"w0|1"}
    assert rig.take(Fleet)[-1].decode_ready == 2


def test_the_queue_of_one_model_wakes_no_worker_of_another() -> None:
    rig = with_warm()
    crowd(rig, 30, model="chat")
    keep_alive(rig, 2.0)
    assert rig.core.queued
    assert orders(rig) == []


def test_an_order_is_repeated_until_a_beat_agrees() -> None:
    rig = with_warm(awake=False)
    keep_alive(rig, 0.4)
    assert orders(rig) == [True]
    keep_alive(rig, 1.2)
    assert orders(rig) == []
    keep_alive(rig, 1.2)
    assert orders(rig) == [True]
    keep_alive(rig, 4.0, asleep=False)
    assert orders(rig) == []


def test_the_floor_wakes_it_when_the_last_worker_that_is_awake_goes() -> None:
    rig = with_warm()
    keep_alive(rig, 2.0)
    assert orders(rig) == []
    rig.gone("d-code|1")
    keep_alive(rig, 0.4)
    assert orders(rig) == [True]


def test_a_higher_floor_keeps_it_awake() -> None:
    rig = with_warm(floors={"code": 2}, warm_idle_ms=1_000.0)
    keep_alive(rig, 0.4)
    assert orders(rig) == [True]
    keep_alive(rig, 3.0, asleep=False)
    assert orders(rig) == []


def test_it_sleeps_again_when_it_was_idle_for_long_and_not_with_a_request() -> None:
    rig = with_warm(warm_idle_ms=2_000.0)
    rig.now += 60.0
    keep_alive(rig, 1.6, asleep=False)
    assert orders(rig) == [], "it woke just now, however long it slept"
    keep_alive(rig, 0.8, asleep=False)
    assert orders(rig) == [False]
    crowd(rig, 3)
    assert rig.row("w0|1").held
    keep_alive(rig, 4.0, asleep=False)
    assert orders(rig) == []


def test_each_order_is_logged_once_however_often_it_is_repeated() -> None:
    rig = with_warm(warm_idle_ms=400.0)
    noted: list[str] = []

    def notes(seconds: float, *, asleep: bool) -> None:
        for _ in range(round(seconds / 0.4)):
            for peer in ("d-chat|1", "d-code|1", "g0|1"):
                if peer in rig.core.peers():
                    rig.beat(peer)
            says(rig, "w0", asleep=asleep)
            made = [action for action in rig.tick(0.4) if isinstance(action, Note)]
            noted.extend(note.event for note in made if note.event in WARM_EVENTS)

    notes(4.0, asleep=False)
    notes(0.8, asleep=True)
    notes(4.0, asleep=False)
    rig.gone("d-code|1")
    notes(0.8, asleep=True)
    assert noted == ["worker.asleep", "worker.asleep", "worker.woken"]


def test_an_order_to_sleep_is_repeated_too() -> None:
    rig = with_warm(warm_idle_ms=400.0)
    keep_alive(rig, 4.0, asleep=False)
    assert orders(rig)[:2] == [False, False]


@pytest.mark.parametrize("why", ["drained", "stopping", "rebuilding", "suspect"])
def test_what_could_not_serve_is_not_woken(why: str) -> None:
    rig = with_warm(awake=False, rebuild_seconds=30.0 if why == "rebuilding" else 0.0)
    if why == "drained":
        rig.handle(WorkerDrained("w0|1", on=True))
    elif why == "stopping":
        rig.handle(DrainStarted())
    if why == "suspect":
        rig.tick(1.8, alive=("d-chat|1", "g0|1"))
        assert rig.row("w0|1").state.value == "suspect"
        rig.sent.clear()
        rig.tick(0.4, alive=("d-chat|1", "g0|1"))
    else:
        for _ in range(3):
            rig.receive(
                "w0|1", Beat(load=IDLE, warm=WarmState(asleep=True), drained=why == "drained")
            )
            rig.tick(0.4, alive=("d-chat|1", "g0|1"))
    assert orders(rig) == []


def test_one_that_wakes_is_introduced_to_prefill_workers_that_came_meanwhile() -> None:
    rig = with_warm()
    rig.prefill("p-code", model="code")
    assert not rig.take(Introduce, "w0|1")
    says(rig, "w0", asleep=False)
    others = [rig.row(name).kv_address for name in ("p-code|1", "d-code|1")]
    assert [message.kv_address for message in rig.take(Introduce, "w0|1")] == others


def test_one_that_sleeps_is_no_lost_capacity_not_even_when_it_dies() -> None:
    rig = with_warm()
    for dies in (False, True):
        if dies:
            rig.gone("w0|1")
        rig.tick(0.4, alive=("d-chat|1", "d-code|1", "g0|1"))
        assert rig.core.shared.models["code"].admission.capacity == 1.0


def test_a_fleet_without_warm_workers_is_never_told() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode()
    crowd(rig, 40, model="model")
    rig.tick(5.0, alive=("d0|1", "g0|1"))
    assert not rig.take(Wake)

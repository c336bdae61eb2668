"""Whether one stream would better go on at another worker: the sums."""

from __future__ import annotations

import pytest

from common.config import RebalanceConfig
from services.router.fleet.rebalance import LOOK_SECONDS, Load, Mover, Rebalance

SOURCE = Load("d0|1", "d0", 6, 2, 100)
TARGET = Load("d1|1", "d1", 1, 7, 1000)


def step_s(batch: int) -> float:
    """Quadratic, so that an even load is best."""
    return 0.010 + 0.002 * batch


def mover(name: str = "r", remaining: int = 100, pause_s: float = 0.05, need: int = 64) -> Mover:
    return Mover((name, 1), 64, need, remaining, pause_s)


def look(
    controller: Rebalance | None = None,
    *movers: Mover,
    source: Load = SOURCE,
    target: Load = TARGET,
    head: int = 0,
    flat: bool = False,
    now: float = 10.0,
) -> tuple[str, str]:
    controller = controller or Rebalance(RebalanceConfig(mode="dry"))
    curve = (lambda batch: 0.01) if flat else step_s
    verdict = controller.look((source, target), movers or (mover(),), head, curve, now)
    assert controller.verdict is verdict
    return (verdict.key[0] if verdict.key else "", verdict.sentence)


def test_a_stream_leaves_the_fuller_worker_where_all_gain() -> None:
    """(6*22 + 12) - (5*20 + 2*14) = 16 ms a token, 1.6 s over 100 tokens."""
    key, sentence = look()
    assert key == "r"
    assert sentence == "d0 has 6 streams and d1 1: a move gains 1600 ms and costs 50 ms"


@pytest.mark.parametrize(("pause", "moves"), [(0.79, True), (0.81, False)])
def test_the_gain_has_to_be_twice_the_cost(pause: float, moves: bool) -> None:
    key, sentence = look(None, mover(pause_s=pause))
    assert bool(key) is moves
    assert ("2 times its cost is asked for" in sentence) is not moves


def test_what_ends_soon_stays() -> None:
    assert look(None, mover(remaining=2))[0] == ""


def test_nothing_moves_where_a_larger_batch_costs_nothing() -> None:
    assert look(flat=True)[0] == ""


def test_nothing_moves_between_workers_that_would_only_change_places() -> None:
    target = TARGET._replace(streams=5)
    assert look(target=target)[0] == ""


@pytest.mark.parametrize(("need", "moves"), [(164, True), (165, False)])
def test_the_head_of_the_queue_counts_if_it_fits_where_the_stream_was(
    need: int, moves: bool
) -> None:
    assert bool(look(head=need, flat=True)[0]) is moves


@pytest.mark.parametrize("target", [TARGET._replace(slots=0), TARGET._replace(kv_free=63)])
def test_a_worker_without_room_gets_none(target: Load) -> None:
    assert look(target=target) == ("", "no stream of d0 could go on at d1")


def test_of_several_the_one_moves_that_gains_most() -> None:
    movers = (mover("a", 100), mover("b", 900), mover("c", 900, need=2000), mover("d", 800))
    assert look(None, *movers)[0] == "b"


@pytest.mark.parametrize("back", [False, True])
def test_two_workers_are_left_alone_for_a_while(back: bool) -> None:
    controller = Rebalance(RebalanceConfig(mode="on", cooldown_ms=5_000.0))
    controller.record_move(*(("d1|1", "d0|1") if back else ("d0|1", "d1|1")), now=10.0)
    assert look(controller, now=14.9) == ("", "a stream moved between d0 and d1 5 s ago")
    assert look(controller, now=15.0)[0] == "r"
    assert look(controller, target=TARGET._replace(identity="d2|1"), now=11.0)[0] == "r"


def test_it_looks_once_a_second_and_only_if_it_may() -> None:
    assert not Rebalance(RebalanceConfig()).due(0.0)
    controller = Rebalance(RebalanceConfig(mode="dry"))
    assert controller.due(0.0)
    controller.stay("nothing to do", 0.0)
    assert not controller.due(LOOK_SECONDS - 0.1)
    assert controller.due(LOOK_SECONDS)


def test_what_is_remembered_is_bounded() -> None:
    controller = Rebalance(RebalanceConfig(mode="on"))
    for n in range(1000):
        controller.record_move("d0|1", f"d{n + 1}|1", 1.0)
    assert len(controller._moved) == 256

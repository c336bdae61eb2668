"""A rolling restart, look by look: the action, the floor, and every way in which it stops."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from common.net.admin_rows import WorkerRow
from services.rollout.core import (
    Action,
    Drain,
    Limits,
    Report,
    Restart,
    Resume,
    Rollout,
    in_turn,
)
from tests.unit.common.net.rows import WORKER

LIMITS = Limits(floor=1, drain=10.0, ready=30.0, settle=2.0)


def seen(name: str) -> WorkerRow:
    role = "prefill" if name.startswith("p") else "decode"
    return replace(WORKER, name=name, role=role, requests=3)


class Bench:
    """A fleet of ready workers and a rollout over `names`."""

    def __init__(self, *names: str, there: tuple[str, ...] = ("p0", "p1", "d0", "d1")) -> None:
        self.now = 50.0
        self.workers = {name: seen(name) for name in there}
        self.rollout = Rollout(names or ("d0", "d1"), LIMITS, self.now)

    def observe(self, seconds: float = 0.0, *, router: bool = True) -> list[Action]:
        """What is ordered, without the sentences."""
        self.now += seconds
        actions = self.rollout.observe(self.workers if router else None, self.now)
        return [action for action in actions if not isinstance(action, Report)]

    def set(self, name: str, **changes: object) -> WorkerRow:
        self.workers[name] = replace(self.workers[name], **changes)
        return self.workers[name]

    def restarted(self, name: str) -> None:
        """From its drain to where it is ready again."""
        self.set(name, requests=0)
        (action,) = self.observe()
        assert isinstance(action, Restart)
        self.set(name, incarnation=self.workers[name].incarnation + "'")
        assert self.observe() == []


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_roles_take_turns() -> None:
    assert in_turn(["p0", "p1", "p2"], ["d0"]) == ["p0", "d0", "p1", "p2"]


def test_a_warm_worker_is_restarted_too_and_counts_as_one_that_could_serve() -> None:
    bench = Bench("d1", "d0")
    warm = bench.set("d1", state="warm", requests=0)
    assert bench.observe() == [Drain(warm)]
    bench.restarted("d1")
    assert bench.observe(LIMITS.settle) == []
    assert bench.observe() == [Drain(bench.workers["d0"])]


def test_a_mixed_worker_is_one_of_either_role() -> None:
    bench = Bench("d1", there=("p0", "d0", "d1"))
    bench.set("d1", role="mixed")
    assert [type(action) for action in bench.observe()] == [Drain], "p0 and d0 stay"
    bench = Bench("d0", there=("p0", "d0", "d1"))
    bench.set("d1", role="mixed")
    assert [type(action) for action in bench.observe()] == [Drain], "d1 decodes, too"
    bench = Bench("d1", there=("d0", "d1"))
    bench.set("d1", role="mixed")
    assert bench.observe() == []
    assert "0 other prefill workers" in bench.rollout.failure


def test_one_after_the_other_each_drained_first(bench: Bench) -> None:
    before = bench.workers["d0"]
    assert bench.observe() == [Drain(before)]
    assert bench.observe(5.0) == []
    bench.set("d0", requests=0)
    assert bench.observe() == [Restart(before)]
    del bench.workers["d0"]
    assert bench.observe(5.0) == []
    bench.workers["d0"] = replace(before, incarnation="2", state="joining")
    assert bench.observe() == []
    bench.set("d0", state="ready")
    assert bench.observe() == []
    assert bench.rollout.done == []
    assert bench.observe(2.0) == []
    assert bench.rollout.done == ["d0"]
    assert bench.observe() == [Drain(bench.workers["d1"])]
    bench.restarted("d1")
    bench.observe(2.0)
    assert (bench.rollout.over, bench.rollout.done, bench.rollout.failure) == (
        True,
        ["d0", "d1"],
        "",
    )


def test_what_a_drain_cannot_finish_is_left_to_the_worker(bench: Bench) -> None:
    bench.observe()
    assert bench.observe(10.0) == []
    assert [type(action) for action in bench.observe(0.1)] == [Restart]


def test_the_floor_is_kept(bench: Bench) -> None:
    bench.set("d1", state="suspect")
    assert bench.observe() == []
    bench.set("d1", state="ready")
    assert [type(action) for action in bench.observe()] == [Drain]


def test_the_last_of_a_role_is_not_taken() -> None:
    bench = Bench("d0", there=("p0", "d0"))
    assert bench.observe() == []
    assert "--floor 0" in bench.rollout.failure


def test_a_worker_that_does_not_come_back_stops_it(bench: Bench) -> None:
    bench.observe()
    bench.set("d0", requests=0)
    bench.observe()
    del bench.workers["d0"]
    bench.observe(30.1)
    assert "d0 is not there 30 s after its restart" in bench.rollout.failure
    assert (bench.rollout.done, bench.rollout.left) == ([], ["d0", "d1"])
    assert bench.observe(100.0) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"incarnation": "3"}, "died again"), ({"state": "suspect"}, "d0 is suspect")],
)
def test_a_canary_that_does_not_stay_ready_stops_it(changes: dict[str, str], says: str) -> None:
    bench = Bench()
    bench.observe()
    bench.restarted("d0")
    bench.set("d0", **changes)
    bench.observe(1.0)
    assert says in bench.rollout.failure
    assert bench.rollout.left == ["d0", "d1"]


def test_a_process_that_never_left_is_named(bench: Bench) -> None:
    bench.observe()
    bench.set("d0", requests=0)
    bench.observe()
    bench.observe(30.1)
    assert "the process is still the old one" in bench.rollout.failure


def test_while_no_router_answers_only_time_passes(bench: Bench) -> None:
    bench.observe()
    assert bench.observe(5.0, router=False) == []
    bench.restarted("d0")
    assert bench.observe(1.0, router=False) == []
    assert bench.rollout.failure == ""


def test_what_could_not_be_restarted_gets_work_again(bench: Bench) -> None:
    (action,) = bench.observe()
    assert isinstance(action, Drain)
    assert bench.rollout.fail("no such process") == [Resume(action.worker)]
    assert bench.rollout.fail("again") == []
    assert bench.rollout.failure == "no such process"


def test_another_fingerprint_is_told(bench: Bench) -> None:
    bench.observe()
    bench.set("d0", requests=0)
    bench.observe()
    bench.set("d0", incarnation="2", fingerprint="g")
    bench.observe()
    bench.now += 2.0
    (said,) = bench.rollout.observe(bench.workers, bench.now)
    assert isinstance(said, Report)
    assert "another fingerprint" in said.sentence

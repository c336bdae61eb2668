"""What each worker of a host is told of itself."""

from __future__ import annotations

from common.messages import HealthVerdict
from services.health.verdicts.host_verdict import BETTER_AFTER, Probe
from services.health.verdicts.worker_verdicts import RECENTLY_BAD, WorkerVerdicts

D0, D1 = ("decode", "d0"), ("decode", "d1")


def probe(value: float, about: tuple[str, str] | None = D0) -> Probe:
    return Probe("p", value, 0.5, 0.9, f"p is {value}", about)


def test_only_what_was_measured_of_a_worker_counts_against_it() -> None:
    verdicts = WorkerVerdicts()
    bad = [probe(0.6), probe(1.0, None), probe(1.0, ("router", "r0"))]
    assert verdicts.round([D0, D1], bad) == {}, "once is no verdict"
    assert verdicts.round([D0, D1], bad) == {D0: HealthVerdict(reason="p is 0.6")}


def test_what_stands_is_said_each_round_and_its_end_once() -> None:
    verdicts = WorkerVerdicts()
    verdicts.round([D0], [probe(1.0)])
    for _ in range(3):
        assert verdicts.round([D0], [probe(1.0)]) == {
            D0: HealthVerdict(reason="p is 1.0", down=True)
        }
    for _ in range(BETTER_AFTER - 1):
        assert verdicts.round([D0], [probe(0.1)]) == {
            D0: HealthVerdict(reason=RECENTLY_BAD, down=True)
        }
    assert verdicts.round([D0], [probe(0.1)]) == {D0: None}
    assert verdicts.round([D0], [probe(0.1)]) == {}


def test_a_worker_that_left_comes_back_without_its_past() -> None:
    verdicts = WorkerVerdicts()
    verdicts.round([D0], [probe(1.0)])
    verdicts.round([], [probe(1.0)])
    assert verdicts.round([D0], [probe(1.0)]) == {}

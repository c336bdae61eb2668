"""Workers of several speeds: who gets what, and how much of it, so that tokens come in time."""

from __future__ import annotations

import pytest

from common.errors import BatonError
from common.messages import DecodeStarted, Load, PrefillEnded, PriorityClass, Role
from services.router.admission.stream_limits import KNOWN_SECONDS
from services.router.estimates.worker_speeds import TRUST_SAMPLES
from services.router.placement.place import place
from services.router.placement.policies import cost
from services.router.placement.types import (
    Placement,
    PlacementContext,
    Rates,
    ResourceRequest,
    WaitFor,
    WorkerView,
)
from services.router.queue.fair_class import QueueAhead
from services.router.rules.admit import predicted
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.views import view

RATES = Rates(step_s=0.02, step_s_per_seq=0.001)


def chosen(decodes: list[WorkerView], prefills: list[WorkerView]) -> tuple[str, str]:
    context = PlacementContext(ResourceRequest(200, 50), rates=RATES)
    choice = place(context, decodes, prefills, cost)
    assert isinstance(choice, Placement)
    assert choice.prefill is not None
    return choice.prefill.name, choice.decode.name


@pytest.mark.parametrize(
    ("decodes", "name"),
    [
        ([view("d0", step_speed=0.5), view("d1")], "d1"),
        ([view("d0", step_speed=0.5), view("d1", requests=5)], "d1"),
        ([view("d0", step_speed=0.9), view("d1", requests=5)], "d0"),
        ([view("d0"), view("d1", step_speed=2.0, requests=5)], "d1"),
    ],
)
def test_a_faster_worker_has_more_streams(decodes: list[WorkerView], name: str) -> None:
    assert chosen(decodes, [view("p0")])[1] == name


@pytest.mark.parametrize(
    ("prefills", "name"),
    [
        ([view("p0", prefill_speed=0.5), view("p1")], "p1"),
        ([view("p0", prefill_speed=0.5), view("p1", queued=150)], "p1"),
        ([view("p0", prefill_speed=0.5), view("p1", queued=250)], "p0"),
        ([view("p0", prefill_speed=3.0, queued=350), view("p1")], "p0"),
    ],
)
def test_a_faster_worker_computes_more_prompts(prefills: list[WorkerView], name: str) -> None:
    assert chosen([view("d0")], prefills)[0] == name


@pytest.mark.parametrize(
    ("decodes", "name"),
    [
        ([view("d0", prefill_speed=0.5), view("d1")], "d1"),
        ([view("d0", prefill_speed=0.5), view("d1", queued=150)], "d1"),
        ([view("d0", prefill_speed=0.5), view("d1", queued=250)], "d0"),
        ([view("d0", prefill_speed=3.0, queued=350), view("d1")], "d0"),
    ],
)
def test_a_faster_worker_computes_more_of_the_prompts_that_stay_local(
    decodes: list[WorkerView], name: str
) -> None:
    context = PlacementContext(ResourceRequest(200, 50), rates=RATES, local=True)
    choice = place(context, decodes, [], cost)
    assert isinstance(choice, Placement)
    assert choice.decode.name == name


def test_what_the_streams_of_a_mixed_worker_lose_is_by_its_own_steps() -> None:
    """A prompt is the larger share of a short step, and is missed more where steps are short."""
    views = [view("m0", mixed=True, decoding=4, step_speed=4), view("m1", mixed=True, decoding=4)]
    context = PlacementContext(ResourceRequest(200, 50), rates=RATES)
    quick, slow = cost.prefill_scores(context, views, view("d0", step_speed=0.1))
    assert quick > slow


def fleet(itl_slo_ms: float = 60.0, *, slow_ms: float = 50.0, seqs: int = 8) -> Rig:
    """d0 makes a step in 20 ms and 1 more for each stream, d1 in `slow_ms` and 2 more."""
    rig = Rig(itl_slo_ms=itl_slo_ms, remote_prefill="never")
    rig.gateway()
    rig.beat(rig.prefill(), Load())
    for name in ("d0", "d1"):
        rig.beat(rig.decode(name, seqs=seqs), Load())
    measure(rig, slow_ms)
    return rig


def measure(rig: Rig, slow_ms: float) -> None:
    estimates = rig.core.tables.estimates
    for _ in range(200):
        for batch in (2, 8):
            estimates.record_decode("d0", batch, 100, 100 * (0.020 + 0.001 * batch))
            estimates.record_decode("d1", batch, 100, 100 * (slow_ms + 2 * batch) / 1000)
    for name in ("d0", "d1"):
        worker = rig.row(f"{name}|1")
        step = estimates.steps.speeds.distinct(name)
        worker.speed = worker.speed._replace(step=step, measured=rig.now)
    rig.tick()


def test_a_worker_that_comes_back_is_as_fast_as_before_and_tried_once() -> None:
    rig = fleet(slow_ms=90.0)
    rig.gone("d1|1")
    rig.beat(rig.decode("d1", "2"), Load())
    rig.tick()
    row = rig.row("d1|2")
    assert row.speed.step < 0.7
    assert (row.slots, row.speed.patient) == (1, False)
    submit(rig, 20)
    assert len(of(rig, "d0")) == 8
    assert rig.row("d1|2").held.keys() == {("r8", 1)}


def test_one_of_which_little_is_known_is_not_taken_for_slow() -> None:
    """The fleet is: all that was measured is of slow workers."""
    rig = Rig(itl_slo_ms=60.0, remote_prefill="never")
    rig.gateway()
    estimates = rig.core.tables.estimates
    for _ in range(99):
        estimates.record_decode("d1", 1, 100, 100 * 0.2)
    rig.beat(rig.decode("d0"), Load())
    for n in range(TRUST_SAMPLES - 1):
        rig.tick()
        assert not rig.row("d0|1").speed.patient
        rig.submit(f"r{n}")
        rig.started(f"r{n}", kv=None)
        rig.ended(f"r{n}")
        assert rig.row("d0|1").speed.measured < 0
    rig.submit("r99")
    rig.started("r99", kv=None)
    rig.ended("r99")
    assert rig.row("d0|1").speed.measured == rig.now
    assert rig.row("d0|1").speed.step > 10, "10 ms a step, and 200 is usual"


def test_what_was_measured_long_ago_is_measured_again_by_one_stream() -> None:
    rig = fleet(slow_ms=90.0)
    rig.tick(KNOWN_SECONDS + 1, alive=("g0|1", "p0|1", "d0|1", "d1|1"))
    row = rig.row("d1|1")
    assert (row.slots, row.speed.patient) == (1, False)


def of(rig: Rig, name: str) -> list[str]:
    attempts = [rig.known(f"r{n}") for n in range(20)]
    return [a.request_id for a in attempts if a.decode == f"{name}|1"]


def submit(rig: Rig, count: int, priority: PriorityClass = PriorityClass.STANDARD) -> None:
    for number in range(count):
        rig.submit(f"r{number}", prompt=8, out=8, priority=priority)


def test_a_worker_gets_no_more_than_it_serves_in_time() -> None:
    rig = fleet()
    submit(rig, 20)
    assert len(of(rig, "d0")) == 8, "as many as it has slots"
    assert len(of(rig, "d1")) == 3, "50 ms, and 2 for each, are 56 of 57"
    assert rig.core.queued == 9


def test_without_a_limit_all_slots_are_used() -> None:
    rig = fleet(0.0)
    submit(rig, 20)
    assert (len(of(rig, "d0")), len(of(rig, "d1"))) == (8, 8)


def test_a_worker_that_is_too_slow_for_one_gets_the_lowest_class_alone() -> None:
    rig = fleet(slow_ms=90.0)
    assert rig.row("d1|1").speed.patient
    submit(rig, 20)
    assert (len(of(rig, "d0")), len(of(rig, "d1"))) == (8, 0)
    rig.submit("b0", prompt=8, out=8, priority=PriorityClass.BATCH)
    assert rig.known("b0").decode == "d1|1", "it passes those that wait for d0"
    assert rig.known("r19").waits_for is WaitFor.SLOT


def test_a_patient_worker_is_no_capacity_for_what_has_to_come_in_time() -> None:
    rig = fleet(slow_ms=90.0)
    totals = rig.core.tables.snapshots.totals(rig.row("d0|1").role)
    assert (totals.workers, totals.slots) == (1, 8)
    measure(rig, 20.0)
    assert not rig.row("d1|1").speed.patient
    totals = rig.core.tables.snapshots.totals(rig.row("d0|1").role)
    assert (totals.workers, totals.slots) == (2, 16)


def test_where_all_are_too_slow_the_limit_does_not_hold() -> None:
    rig = fleet(10.0)
    submit(rig, 20)
    assert not rig.row("d1|1").speed.patient
    assert (len(of(rig, "d0")), len(of(rig, "d1"))) == (8, 8)


def test_where_only_those_that_are_too_slow_are_left_they_serve_all() -> None:
    rig = fleet(slow_ms=90.0)
    ask(rig, "drain", worker="d0")
    submit(rig, 20)
    assert not rig.row("d1|1").speed.patient
    assert (len(of(rig, "d0")), len(of(rig, "d1"))) == (0, 8)


def test_a_worker_that_starts_slowly_gets_no_more_for_its_pace() -> None:
    rig = fleet(slow_ms=20.0)
    rig.row("d1|1").ramp_from = rig.now
    rig.tick()
    assert rig.row("d1|1").slots == 2, "a quarter of eight"


def test_streams_do_not_move_to_a_patient_worker() -> None:
    rig = fleet(slow_ms=90.0)
    rig.submit("r0", resumable=True, prompt=8, out=8)
    rig.started("r0", kv=None)
    with pytest.raises(BatonError, match="d1 is too slow for all classes but batch"):
        ask(rig, "move", request="r0")


def test_the_wait_for_a_prompt_is_that_of_the_speeds_together() -> None:
    rig = Rig(remote_prefill="always")
    rig.gateway()
    workers = {"p0": 0.1, "p1": 0.3}
    for name in workers:
        rig.beat(rig.prefill(name), Load())
    rig.beat(rig.decode(), Load())
    rig.submit("r0", prompt=800)
    attempt, tables = rig.known("r0"), rig.core.tables
    for turn in range(20):
        for name, seconds in workers.items():
            tables.estimates.prefill.ended(name, 800, seconds, 10.0 * turn)
    speeds = tables.estimates.prefill.speeds
    for name in workers:
        tables.add_worker(rig.row(f"{name}|1"))
        rig.beat(f"{name}|1", Load(running=1))
    rig.tick()
    typical = tables.estimates.prefill_seconds(800)
    fast, slow = (speeds.measured(name) for name in workers)
    assert fast / slow == pytest.approx(3.0, rel=0.1)
    ten = predicted(tables, attempt, QueueAhead(10, 8_000, 9_000))
    assert ten.prefill == pytest.approx(typical)
    assert ten.prefill_wait == pytest.approx(11 * typical / (fast + slow), rel=0.01)


def test_the_speeds_of_workers_are_those_that_their_reports_tell() -> None:
    rig = Rig(remote_prefill="always")
    rig.gateway()
    rig.beat(rig.decode(), Load())
    for name in ("p0", "p1"):
        rig.beat(rig.prefill(name, seqs=1), Load())
    steps = rig.core.tables.estimates.steps
    for _ in range(99):
        steps.ended("d1", 1, 100, 100 * 0.03)
    for turn in range(3 * TRUST_SAMPLES):
        for n in range(2):
            request = f"r{turn}-{n}"
            rig.submit(request, prompt=100, out=4)
            peer = rig.known(request).prefill
            report = PrefillEnded(
                request_id=request, attempt=1, elapsed_ms=50.0 if peer == "p0|1" else 200.0
            )
            rig.now += 1.0
            rig.receive(peer, report)
            rig.started(request)
            rig.ended(request)
    assert rig.row("p0|1").speed.prefill > 1.15
    assert rig.row("d0|1").speed.step > 1.15, "10 ms a step"
    assert rig.row("d0|1").speed.measured > 0


def test_decode_workers_that_compute_prompts_have_a_speed_at_it_and_are_foretold_by_it() -> None:
    """Without prefill workers the wait is that of the speeds together, too."""
    rig = Rig(mode="replicated")
    rig.gateway()
    times = {"d0": 0.1, "d1": 0.3}
    for name in times:
        rig.beat(rig.decode(name, seqs=1), Load())
    for turn in range(3 * TRUST_SAMPLES):
        for n in range(2):
            rig.submit(f"r{turn}-{n}", prompt=800)
        for n in range(2):
            request = f"r{turn}-{n}"
            peer = rig.known(request).decode
            elapsed_ms = times[peer[:2]] * 1000
            started = DecodeStarted(request_id=request, attempt=1, elapsed_ms=elapsed_ms)
            rig.now += 1.0
            rig.receive(peer, started)
            rig.ended(request, peer=peer)
    fast, slow = (rig.row(f"{name}|1").speed.prefill for name in times)
    assert fast / slow == pytest.approx(3.0, rel=0.1)
    rig.submit("more", prompt=800)
    foretold = predicted(rig.core.tables, rig.known("more"), QueueAhead(9, 7_200, 9_000))
    typical = rig.core.tables.estimates.local_prefill_seconds(800)
    assert foretold.prefill_wait == pytest.approx(10 * typical / (fast + slow), rel=0.01)


def test_a_mixed_worker_is_as_fast_as_what_it_computes_for_others_tells() -> None:
    """Its own prompts are not mistaken for it: their curve is another one."""
    rig = Rig(remote_prefill="always")
    rig.gateway()
    rig.beat(rig.worker(Role.MIXED, "m0"), Load())
    local = rig.core.tables.estimates.local_prefill
    for turn in range(99):
        local.ended("d9", 800, 0.1, 10.0 * turn)
        local.ended("m0", 800, 0.4, 10.0 * turn)
    rig.submit("r1", prompt=800)
    rig.receive("m0|1", DecodeStarted(request_id="r1", attempt=1, elapsed_ms=400.0))
    assert rig.row("m0|1").speed.prefill == 1.0

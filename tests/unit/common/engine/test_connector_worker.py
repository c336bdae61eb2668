"""The worker half: layers told as they are done, ends reported to vLLM once and in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from common.engine.connector_meta import Fetch, Progress, StepPlan
from common.engine.connector_worker import LayerClock, WorkerHalf
from common.errors import Code
from common.kv.handoff.desk import Key
from common.kv.messages import KvDone
from common.kv.service import KvService
from common.messages import KvReport, Ticket
from tests.unit.common.kv.handoff.helpers import ticket

KEY = ("r", 0)
NAMES = [f"layer{at}" for at in range(5)]


class FakeService:
    """Records what it is told; `ends` are drained once."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.ends: list[KvDone] = []

    def offer(self, offered: Ticket, blocks: int) -> None:
        self.told.append(("offer", offered.request_id, blocks))

    def progress(self, key: Key, ids: Sequence[int], computed: int, *, ended: bool) -> None:
        self.told.append(("progress", list(ids), computed, ended))

    def ahead(self, key: Key, ids: Sequence[int], blocks: int, layers: int) -> None:
        self.told.append(("ahead", blocks, layers))

    def fetch(self, wanted: Ticket, first: int, ids: Sequence[int]) -> None:
        self.told.append(("fetch", first, list(ids)))

    def drain(self) -> list[KvDone]:
        ends, self.ends = self.ends, []
        return ends

    def end(self, side: str, error: str = "") -> None:
        self.ends.append(
            KvDone(request_id="r", attempt=0, side=side, report=KvReport(), error=error)  # type: ignore[arg-type]
        )


@pytest.fixture
def service() -> FakeService:
    return FakeService()


def half(service: FakeService, group_layers: int = 0) -> WorkerHalf:
    clock = LayerClock(NAMES, group_layers) if group_layers else None
    return WorkerHalf(cast("KvService", service), lambda: None, clock)


def chunk(computed: int, *, first: bool = False) -> StepPlan:
    progress = Progress(KEY, [3, 4, 5], computed, ticket() if first else None, prompt_blocks=3)
    return StepPlan(progress=[progress])


def run_step(worker: WorkerHalf, plan: StepPlan) -> None:
    worker.begin(plan)
    for name in NAMES:
        worker.layer_saved(plan, name)
    worker.computed(plan)


def test_each_group_of_layers_but_the_last_is_told_as_it_is_done(service: FakeService) -> None:
    worker = half(service, group_layers=2)
    run_step(worker, chunk(2, first=True))
    run_step(worker, chunk(3))
    assert service.told == [
        ("offer", "r", 3),
        ("ahead", 2, 2),
        ("ahead", 2, 4),
        ("progress", [3, 4, 5], 2, False),
        ("ahead", 3, 2),
        ("ahead", 3, 4),
        ("progress", [3, 4, 5], 3, True),
    ]


def test_without_groups_a_step_is_told_at_its_end(service: FakeService) -> None:
    run_step(half(service), chunk(3, first=True))
    assert service.told == [("offer", "r", 3), ("progress", [3, 4, 5], 3, True)]


def test_a_step_without_handoffs_tells_nothing(service: FakeService) -> None:
    run_step(half(service, group_layers=1), StepPlan())
    assert service.told == []


def test_layers_count_as_they_lie_in_memory_whatever_order_they_come_in() -> None:
    clock = LayerClock(NAMES, 2)
    assert [clock.saved(name) for name in ("layer1", "other", "layer2", "layer0")] == [0, 0, 0, 2]
    assert clock.saved("layer3") == 4
    assert clock.saved("layer4") == 0, "the last group goes with the step's end"
    clock.restart()
    assert [clock.saved(name) for name in NAMES] == [0, 2, 0, 4, 0]


def test_a_failed_receive_is_reported_once_as_finished_and_failed(service: FakeService) -> None:
    worker = half(service)
    worker.load(StepPlan(fetches=[Fetch(ticket(), 0, [7])]))
    assert worker.results(StepPlan(), ()) == (set(), set(), set())
    service.end("receive", Code.KV_TRANSFER_FAILED)
    assert worker.results(StepPlan(), ()) == (set(), {"r#0"}, {"r#0"})
    service.end("receive", Code.KV_TRANSFER_FAILED)
    assert worker.results(StepPlan(), ()) == (set(), set(), set())


def test_a_send_is_reported_only_when_vllm_says_its_request_finished(service: FakeService) -> None:
    worker = half(service)
    worker.begin(chunk(3, first=True))
    service.end("send")
    assert worker.results(StepPlan(), ()) == (set(), set(), set())
    assert worker.results(StepPlan(), ("r#0",)) == ({"r#0"}, set(), set())
    assert worker.results(StepPlan(), ("r#0",)) == (set(), set(), set())


def test_ends_of_requests_that_vllm_does_not_wait_for_are_none_of_its_business(
    service: FakeService,
) -> None:
    worker = half(service)
    worker.load(StepPlan(fetches=[Fetch(ticket(), 0, [])]))
    service.end("receive")
    service.end("send")
    assert worker.results(StepPlan(), ("r#0",)) == (set(), set(), set())

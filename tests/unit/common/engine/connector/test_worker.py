"""The worker half: layers reported as they are done, ends reported to vLLM once and in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from common.engine.connector.metadata import Fetch, Progress, StepPlan
from common.engine.connector.worker import LayerProgress, WorkerHalf
from common.errors import Code
from common.identity import AttemptKey
from common.kv.messages import KvDone
from common.kv.service import KvService
from common.messages import KvReport, Ticket
from tests.rigs.messages import ticket

KEY = ("r", 0)
NAMES = [f"layer{at}" for at in range(5)]


class FakeService:
    """Records its calls; `ends` are drained once."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.ends: list[KvDone] = []

    def offer(self, offered: Ticket, blocks: int) -> None:
        self.calls.append(("offer", offered.request_id, blocks))

    def progress(self, key: AttemptKey, ids: Sequence[int], computed: int, *, ended: bool) -> None:
        self.calls.append(("progress", list(ids), computed, ended))

    def layers_computed(
        self, key: AttemptKey, ids: Sequence[int], blocks: int, layers: int
    ) -> None:
        self.calls.append(("layers_computed", blocks, layers))

    def fetch(self, wanted: Ticket, first: int, ids: Sequence[int]) -> None:
        self.calls.append(("fetch", first, list(ids)))

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
    progress = LayerProgress(NAMES, group_layers) if group_layers else None
    return WorkerHalf(cast("KvService", service), lambda: None, progress)


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
    assert service.calls == [
        ("offer", "r", 3),
        ("layers_computed", 2, 2),
        ("layers_computed", 2, 4),
        ("progress", [3, 4, 5], 2, False),
        ("layers_computed", 3, 2),
        ("layers_computed", 3, 4),
        ("progress", [3, 4, 5], 3, True),
    ]


def test_without_groups_a_step_is_told_at_its_end(service: FakeService) -> None:
    run_step(half(service), chunk(3, first=True))
    assert service.calls == [("offer", "r", 3), ("progress", [3, 4, 5], 3, True)]


def test_a_step_without_handoffs_tells_nothing(service: FakeService) -> None:
    run_step(half(service, group_layers=1), StepPlan())
    assert service.calls == []


def test_layers_count_as_they_lie_in_memory_whatever_order_they_come_in() -> None:
    progress = LayerProgress(NAMES, 2)
    assert [progress.on_saved(name) for name in ("layer1", "other", "layer2", "layer0")] == [
        0,
        0,
        0,
        2,
    ]
    assert progress.on_saved("layer3") == 4
    assert progress.on_saved("layer4") == 0, "the last group goes with the step's end"
    progress.restart()
    assert [progress.on_saved(name) for name in NAMES] == [0, 2, 0, 4, 0]


def test_the_last_group_is_never_reported_ahead_also_when_groups_are_even() -> None:
    """P would report that it is sent early, and the step is not over."""
    progress = LayerProgress(NAMES[:4], 2)
    assert [progress.on_saved(name) for name in NAMES[:4]] == [0, 2, 0, 0]


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

"""Blocks out of another worker's store: what is claimed and asked for, and what a failure costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from common.engine.connector.metadata import (
    StepPlan,
    StorePlan,
    StorePull,
    request_key,
    source_of,
    source_params,
)
from common.engine.connector.scheduler import SchedulerHalf
from common.engine.connector.store import StoreScheduler
from common.engine.connector.worker import WorkerHalf
from common.identity import pull_key
from common.kv.messages import KvDone
from common.kv.store.results import StoreResults
from common.messages import KvReport, KvSource
from tests.unit.common.engine.connector import test_scheduler as made
from tests.unit.common.engine.connector.test_store import BACKLOG, BLOCK, Rig

SOURCE = KvSource(
    name="p0", incarnation="i", fingerprint="f", kv_address="h:1", tokens=4 * BLOCK + 3
)
A = "a#0"


class PullRig(Rig):
    """With sources of the fingerprint `f`."""

    def __init__(self) -> None:
        super().__init__()
        clock = self.clock.monotonic
        store = StoreScheduler(self.table, BLOCK, BACKLOG, clock, fingerprint="f")
        self.half = SchedulerHalf(self.half._groups, store)

    def ask(self, tokens: int, source: KvSource = SOURCE) -> Any:
        request = made.request(None, tokens, A)
        request.num_computed_tokens = 0
        request.kv_transfer_params = source_params(source)
        request.block_hashes = [f"p{at}".encode() for at in range(tokens // BLOCK)]
        self.half.new_request(request)
        return request

    def pull(self, request: Any, ids: list[int], tokens: int, shared: int = 0) -> StorePull:
        """vLLM allocates what was claimed."""
        self.half.allocated(request, made.blocks(ids, shared=shared), tokens)
        pulls: list[StorePull] = self.step(made.output()).pulls
        assert len(pulls) == 1
        return pulls[0]

    def end(self, failed: Iterable[str] = (), held: int = 0) -> None:
        results = StoreResults(held={A: held}) if failed else StoreResults()
        self.half.copies_ended(results, [A], failed)


def test_the_source_survives_the_parameters() -> None:
    assert source_of(source_params(SOURCE)) == SOURCE
    assert source_of({"baton": {}}) is None
    assert source_of(None) is None


def test_what_the_source_has_is_claimed_but_for_the_last_token() -> None:
    rig = PullRig()
    assert rig.half.matched_tokens(rig.ask(100), 0) == 4 * BLOCK
    assert rig.half.matched_tokens(rig.ask(4 * BLOCK), 0) == 3 * BLOCK
    assert rig.half.matched_tokens(rig.ask(100), 3 * BLOCK) == BLOCK
    assert rig.half.matched_tokens(rig.ask(100), 5 * BLOCK) == 0


def test_blocks_are_asked_for_by_the_engine_s_own_hashes_once() -> None:
    rig = PullRig()
    request = rig.ask(100)
    assert rig.half.matched_tokens(request, BLOCK) == 3 * BLOCK
    pull = rig.pull(request, [9, 4, 5, 6], 3 * BLOCK, shared=1)
    assert pull == StorePull(A, SOURCE, b"p1p2p3", [4, 5, 6])
    assert rig.step(made.output()).pulls == []
    rig.end()
    plan = rig.new(request, [9, 4, 5, 6, 7, 8, 3], 36, cached=64)
    assert [copy.block_id for copy in plan.saves] == [4, 5, 6, 7], "it is stored here, too"


def test_the_own_store_goes_first_unless_the_source_has_more() -> None:
    rig = PullRig()
    rig.store(4)
    request = rig.ask(100)
    assert rig.half.matched_tokens(request, 0) == 4 * BLOCK
    rig.half.allocated(request, made.blocks([1, 2, 3, 4]), 4 * BLOCK)
    plan = rig.step(made.output())
    assert (len(plan.loads), plan.pulls) == (1, [])


@pytest.mark.parametrize("fingerprint", ["g", ""])
def test_a_source_of_another_fingerprint_is_not_asked(fingerprint: str) -> None:
    rig = PullRig()
    other = KvSource(
        name="p0", incarnation="i", fingerprint=fingerprint, kv_address="h:1", tokens=64
    )
    assert rig.half.matched_tokens(rig.ask(100, other), 0) == 0


def test_a_worker_that_may_not_pull_asks_nobody() -> None:
    rig = PullRig()
    store = StoreScheduler(rig.table, BLOCK, BACKLOG, rig.clock.monotonic)
    rig.half = SchedulerHalf(rig.half._groups, store)
    assert rig.half.matched_tokens(rig.ask(100), 0) == 0


def test_a_failed_pull_is_not_claimed_again() -> None:
    rig = PullRig()
    request = rig.ask(100)
    rig.half.matched_tokens(request, 0)
    rig.pull(request, [1, 2, 3, 4], 4 * BLOCK)
    rig.end(failed=[A])
    assert rig.half.matched_tokens(request, 0) == 0


def test_what_the_source_still_has_is_claimed_once() -> None:
    rig = PullRig()
    request = rig.ask(100)
    rig.half.matched_tokens(request, BLOCK)
    assert not rig.pull(request, [9, 2, 3, 4], 3 * BLOCK, shared=1).again
    rig.end(failed=[A], held=2)
    assert rig.half.matched_tokens(request, BLOCK) == 2 * BLOCK
    second = rig.pull(request, [9, 2, 3], 2 * BLOCK, shared=1)
    assert (second.hashes, second.again) == (b"p1p2", True), "under another key"
    rig.end(failed=[A], held=1)
    assert rig.half.matched_tokens(request, BLOCK) == 0


def test_the_own_store_serves_after_a_failed_pull() -> None:
    rig = PullRig()
    rig.store(2)
    request = rig.ask(100)
    assert rig.half.matched_tokens(request, 0) == 4 * BLOCK
    rig.pull(request, [1, 2, 3, 4], 4 * BLOCK)
    rig.end(failed=[A])
    assert rig.half.matched_tokens(request, 0) == 2 * BLOCK


def test_a_request_that_ends_meanwhile_gives_its_pull_up() -> None:
    rig = PullRig()
    request = rig.ask(100)
    rig.half.matched_tokens(request, 0)
    rig.pull(request, [1, 2, 3, 4], 4 * BLOCK)
    rig.half.finished(request, [], aborted=True)
    assert rig.half.pending
    assert (("a", 0), "aborted in the engine") in rig.half.step(made.output()).releases
    rig.end(failed=[A])


class FakeService:
    """Notes what is pulled, and has ended what the test says."""

    def __init__(self) -> None:
        self.store = self.promotions = None
        self.pulled: list[tuple[object, ...]] = []
        self.ended: list[KvDone] = []
        self.waited = 0

    def pull(self, *args: object, again: bool, after: object) -> None:
        self.pulled.append((*args, again))

    def drain(self) -> list[KvDone]:
        ended, self.ended = self.ended, []
        return ended

    def wait_end(self, _seconds: float) -> None:
        self.waited += 1


class FakeStore:
    """Holds nothing."""

    busy = False

    def load(self, *_: object) -> None: ...

    def drain(self) -> StoreResults:
        return StoreResults()


def done(error: str = "", held: int = 0, *, again: bool = False) -> KvDone:
    name, attempt = pull_key(("a", 0), again=again)
    return KvDone(
        request_id=name, attempt=attempt, side="receive", report=KvReport(), error=error, held=held
    )


@pytest.mark.parametrize(("error", "held"), [("", 0), ("kv_transfer_failed", 3)])
def test_the_end_of_a_pull_is_that_of_a_load_of_its_request(error: str, held: int) -> None:
    service = FakeService()
    service.store = FakeStore()  # type: ignore[assignment]
    worker = WorkerHalf(service, lambda: None, None)  # type: ignore[arg-type]
    plan = StepPlan(store=StorePlan(pulls=[StorePull(A, SOURCE, b"p0", [4])]))
    worker.load(plan)
    assert service.pulled == [(("a", 0), SOURCE, b"p0", [4], False)]
    assert worker.results(StepPlan(idle=True), []) == (set(), set(), set())
    assert service.waited == 1, "a step that only polls waits a little"
    service.ended = [done(error, held)]
    assert worker.results(StepPlan(), []) == (set(), {A}, {A} if error else set())
    assert worker.store_results().held == ({A: held} if error else {})
    service.ended = [done()]
    assert worker.results(StepPlan(), []) == (set(), set(), set()), "told once"
    worker.load(StepPlan(store=StorePlan(pulls=[StorePull(A, SOURCE, b"p0", [4], again=True)])))
    service.ended = [done()]
    assert worker.results(StepPlan(), []) == (set(), set(), set()), "that of the first is over"
    service.ended = [done(again=True)]
    assert worker.results(StepPlan(), []) == (set(), {A}, set())
    assert request_key(("a", 0)) == A

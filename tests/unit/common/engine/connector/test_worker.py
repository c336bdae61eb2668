"""The worker half: layers reported as they are done, ends reported to vLLM once and in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from common.engine.connector.metadata import (
    AHEAD,
    Fetch,
    Progress,
    StepPlan,
    StoreLoad,
    StoreOffer,
    StorePlan,
    StorePull,
)
from common.engine.connector.worker import LayerProgress, WorkerHalf
from common.errors import Code
from common.identity import AttemptKey
from common.kv.layout import Mark
from common.kv.messages import KvDone
from common.kv.service import KvService
from common.kv.store.record import Spill
from common.kv.store.results import StoreResults
from common.kv.store.table import BlockCopy, BlockName, StoreCounts
from common.messages import KvHolder, KvReport, KvSource, Ticket
from tests.rigs.messages import ticket

KEY = ("r", 0)
NAMES = [f"layer{at}" for at in range(5)]
PAGES = [{name} for name in NAMES]


class FakeStore:
    """Records its calls; `results` are drained once."""

    def __init__(self, calls: list[tuple[object, ...]]) -> None:
        self._calls = calls
        self.afters: list[object] = []
        self.results = StoreResults()
        self.busy = False

    def withdraw(self, ids: Sequence[int]) -> None:
        self._calls.append(("store.withdraw", list(ids)))

    def save(self, copies: Sequence[BlockCopy], after: object) -> None:
        self._calls.append(("store.save", list(copies)))
        self.afters.append(after)

    def load(self, request_id: str, copies: Sequence[BlockCopy], after: object) -> None:
        self._calls.append(("store.load", request_id, list(copies)))
        self.afters.append(after)

    def spill(self, spills: Sequence[Spill], used: list[int], dropped: list[int]) -> None:
        self._calls.append(("store.spill", list(spills), used, dropped))

    def note(self, counts: StoreCounts, disk: StoreCounts) -> None:
        self._calls.append(("store.note", counts, disk))

    def drain(self) -> StoreResults:
        results, self.results = self.results, StoreResults()
        return results


class FakeUses:
    """What other workers have got off the disk."""

    def take_used(self) -> list[BlockName]:
        return [BlockName(0, b"p0")]


class FakeService:
    """Records its calls; `ends` are drained once."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        #: The marks that calls named.
        self.afters: list[object] = []
        self.ends: list[KvDone] = []
        self.store: FakeStore | None = None
        #: As `Promotions`, as far as it is asked.
        self.promotions: FakeUses | None = None
        self.waited = 0

    def offer(self, offered: Ticket, blocks: int) -> None:
        self.calls.append(("offer", offered.request_id, blocks))

    def tell_disk(self, changed: Mapping[BlockName, bytes | None]) -> None:
        self.calls.append(("disk", changed))

    def progress(
        self, key: AttemptKey, ids: Sequence[int], computed: int, *, ended: bool, after: object
    ) -> None:
        self.calls.append(("progress", list(ids), computed, ended))
        self.afters.append(after)

    def layers_computed(
        self, key: AttemptKey, ids: Sequence[int], blocks: int, layers: int, after: object
    ) -> None:
        self.calls.append(("layers_computed", blocks, layers))
        self.afters.append(after)

    def fetch(self, wanted: Ticket, first: int, ids: Sequence[int], after: object) -> None:
        self.calls.append(("fetch", first, list(ids)))
        self.afters.append(after)

    def pull(self, *_: object, again: bool, after: object) -> None:
        self.afters.append(after)

    def keep(self, key: AttemptKey, ids: Sequence[int], after: object) -> None:
        self.calls.append(("keep", key, list(ids)))
        self.afters.append(after)

    def offer_copies(self, *offered: object) -> None:
        self.calls.append(("offer_copies", *offered))

    def end_copies(self, key: AttemptKey) -> None:
        self.calls.append(("end_copies", key))

    def wait_end(self, seconds: float) -> None:
        self.waited += 1

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
    progress = LayerProgress(PAGES, group_layers) if group_layers else None
    return WorkerHalf(cast("KvService", service), lambda: None, progress)


def chunk(computed: int, *, first: bool = False) -> StepPlan:
    progress = Progress(KEY, [3, 4, 5][:computed], 3, ticket() if first else None)
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
        ("progress", [3, 4], 2, False),
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
    progress = LayerProgress(PAGES, 2)
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


def test_a_page_is_done_when_the_layers_of_all_groups_are() -> None:
    progress = LayerProgress([{"a0", "b0"}, {"a1", "b1"}, {"a2"}], 1)
    names = ("a0", "a1", "b0", "b1", "a2")
    assert [progress.on_saved(name) for name in names] == [0, 0, 1, 2, 0]


def test_the_last_group_is_never_reported_ahead_also_when_groups_are_even() -> None:
    """P would report that it is sent early, and the step is not over."""
    progress = LayerProgress(PAGES[:4], 2)
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


@pytest.mark.parametrize(("ids", "told"), [([4, 5], {"r#0"}), ([], set[str]())])
def test_the_end_of_a_kept_stream_is_told_if_vllm_waits_for_its_blocks(
    service: FakeService, ids: list[int], told: set[str]
) -> None:
    worker, plan = half(service), StepPlan(kept=[(KEY, ids)])
    worker.computed(plan)
    assert service.calls == [("keep", KEY, ids)]
    service.ends = [KvDone(request_id="r", attempt=0, side="send", report=KvReport())]
    assert worker.results(plan, {"r#0"})[0] == told


def test_each_report_names_a_mark_after_the_work_that_it_is_about(service: FakeService) -> None:
    given: list[Mark] = []

    def mark() -> Mark:
        given.append(cast("Mark", object()))
        return given[-1]

    worker = WorkerHalf(cast("KvService", service), mark, LayerProgress(PAGES, 1))
    step = StepPlan(
        progress=[Progress(KEY, [3], 3)], fetches=[Fetch(ticket(), 0, [5])], kept=[(KEY, [6])]
    )
    worker.begin(step)
    worker.load(step)
    worker.layer_saved(step, next(iter(PAGES[0])))
    worker.computed(step)
    assert [call[0] for call in service.calls] == ["fetch", "layers_computed", "progress", "keep"]
    assert service.afters == [given[0], given[1], given[2], given[2]]


def copy(slot: int, block: int) -> BlockCopy:
    return BlockCopy(slot, block, BlockName(0, b"h"))


def test_the_store_withdraws_before_the_forward_pass_and_saves_after_it(
    service: FakeService,
) -> None:
    service.store = FakeStore(service.calls)
    worker = WorkerHalf(cast("KvService", service), lambda: None, None)
    loads = [StoreLoad("other", [copy(3, 9)])]
    spills, counts, disk = [Spill(2, 6, BlockName(0, b"h"))], StoreCounts(4), StoreCounts(9)
    store = StorePlan([5], [copy(1, 7)], loads, spills, [3], counts, disk, dropped=[4])
    plan = StepPlan(progress=[Progress(KEY, [3], 3)], store=store)
    worker.preempted(plan)
    assert service.calls == [("store.withdraw", [5])]
    worker.begin(plan)
    worker.load(plan)
    worker.computed(plan)
    assert service.calls[1:] == [
        ("store.load", "other", [copy(3, 9)]),
        ("store.note", counts, disk),
        ("store.save", [copy(1, 7)]),
        ("store.spill", spills, [3], [4]),
        ("progress", [3], 1, False),
    ]


def test_what_the_store_copies_follows_the_work_that_was_given_to_the_card_before(
    service: FakeService,
) -> None:
    """Also in a step in which nothing else is reported."""
    store = service.store = FakeStore(service.calls)
    given: list[Mark] = []

    def mark() -> Mark:
        given.append(cast("Mark", object()))
        return given[-1]

    worker = WorkerHalf(cast("KvService", service), mark, None)
    load = StoreLoad("other", [copy(3, 9)])
    source = KvSource(name="p0", incarnation="i", fingerprint="f", kv_address="h:1", tokens=0)
    pull = StorePull("p#0", source, b"h", [4])
    worker.load(StepPlan(store=StorePlan(loads=[load])))
    worker.load(StepPlan(store=StorePlan(pulls=[pull])))
    worker.computed(StepPlan(store=StorePlan(saves=[copy(1, 7)])))
    assert store.afters == [given[0], given[2]]
    assert service.afters == [given[1]]
    worker.load(StepPlan(store=StorePlan()))
    worker.computed(StepPlan(store=StorePlan()))
    assert len(given) == 3, "a mark is made where something follows it"


def test_what_another_holder_gets_is_told_after_the_step(service: FakeService) -> None:
    service.store = FakeStore(service.calls)
    holder = KvHolder(name="d2", incarnation="i", fingerprint="f", kv_address="h:2")
    store = StorePlan(offers=[StoreOffer(KEY, holder, b"h", b"n", 3)], ended_offers=[("s", 2)])
    half(service).computed(StepPlan(store=store))
    assert service.calls[1:] == [
        ("offer_copies", KEY, holder, b"h", b"n", 3, b""),
        ("end_copies", ("s", 2)),
    ]


@pytest.mark.parametrize("failed", [[], [AHEAD]])
def test_a_load_that_no_request_asked_for_is_told_to_the_scheduler_alone(
    service: FakeService, failed: list[str]
) -> None:
    """vLLM asserts that it knows what is reported to it."""
    store = service.store = FakeStore(service.calls)
    worker = half(service)
    worker.load(StepPlan(store=StorePlan(loads=[StoreLoad(AHEAD, [copy(3, 9)])])))
    assert service.calls == [("store.load", AHEAD, [copy(3, 9)])]
    store.results = StoreResults(loaded=[AHEAD, "r#0"], failed=failed)
    assert worker.results(StepPlan(), ()) == (set(), {"r#0"}, set())
    results = worker.store_results()
    assert (results.loaded, results.failed) == ([AHEAD, "r#0"], failed)


def test_loads_from_the_store_are_reported_like_receives(service: FakeService) -> None:
    service.store = FakeStore(service.calls)
    worker = half(service)
    assert not worker.store_results()
    ended = StoreResults(written=[4], damaged=[2], loaded=["a", "b"], failed=["b"])
    service.store.results = ended
    assert worker.results(StepPlan(), []) == (set(), {"a", "b"}, {"b"})
    assert worker.store_results() == ended
    assert worker.results(StepPlan(), []) == (set(), set(), set())
    assert not worker.store_results(), "told once"


@pytest.mark.parametrize(
    ("busy", "idle", "waits"), [(True, True, 1), (False, True, 0), (True, False, 0)]
)
def test_a_step_that_only_polls_waits_for_the_store(
    service: FakeService, *, busy: bool, idle: bool, waits: int
) -> None:
    service.store = FakeStore(service.calls)
    service.store.busy = busy
    half(service).results(StepPlan(idle=idle), [])
    assert service.waited == waits


def test_what_others_got_off_the_disk_is_reported_with_the_results() -> None:
    service = FakeService()
    service.store, service.promotions = FakeStore(service.calls), FakeUses()
    worker = half(service)
    worker.results(StepPlan(), set())
    assert worker.store_results().used == [BlockName(0, b"p0")]
    joined = StoreResults(used=[BlockName(0, b"p0")]).joined(StoreResults(used=[]))
    assert joined.used == [BlockName(0, b"p0")]


def test_what_the_disk_has_is_told_to_the_daemon() -> None:
    service = FakeService()
    service.store = FakeStore(service.calls)
    told: dict[BlockName, bytes | None] = {BlockName(0, b"p0"): b"o", BlockName(0, b"p1"): None}
    half(service).computed(StepPlan(store=StorePlan(told=told)))
    half(service).computed(StepPlan(store=StorePlan()))
    assert [call for call in service.calls if call[0] == "disk"] == [("disk", told)]

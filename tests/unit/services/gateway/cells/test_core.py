"""Which cell a request goes to, when it goes to a second one, and that it never goes to a third."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages import (
    Abort,
    Cancel,
    Delta,
    Fleet,
    KeepOrder,
    KeptOrders,
    OtherCell,
    Placed,
    Refused,
    Role,
    Sampling,
    ScaleOrder,
    Submit,
)
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.auth.caller import Caller
from services.gateway.cells import rendezvous
from services.gateway.cells.budget import SPILLS_AT_ONCE
from services.gateway.cells.core import LOST_SECONDS, CellsCore
from services.gateway.requests.events import (
    Action,
    Attended,
    Closed,
    DrainStarted,
    Event,
    FromRouter,
    Note,
    Opened,
    Report,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
    ToWorker,
    WorkerGone,
    WorkerUp,
)
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from services.gateway.text.detokenizer import ByteLevelDetokenizer
from tests.unit.services.gateway.gate import PIECES, Once

CELLS = {"c0": 1.0, "c1": 1.0, "c2": 1.0}
READY = Fleet(ready=True, prefill_ready=1, decode_ready=2, max_model_len=100, model="m")
NOT_READY = Fleet(ready=False, prefill_ready=0, decode_ready=0, max_model_len=0, model="m")


def tenant_of(*cells: str) -> str:
    """A tenant whose order begins with these cells."""
    tenants = (f"t{n}" for n in range(10_000))
    return next(t for t in tenants if rendezvous.order(f"tenant {t}".encode(), CELLS)[:2] == cells)


class Rig:
    """Three cells that are up. `sent`: what left for routers since it was looked at, with the
    cell; `aborted`: the workers that were told to stop."""

    def __init__(self, **limits: Any) -> None:
        values = {"router_wait_ms": 5_000, "recovery_ms": 10_000} | limits
        self.core = CellsCore(GatewayConfig(**values), 100, CELLS)
        self.now = 1.0
        self.answers: dict[str, Once] = {}
        self.sent: list[tuple[str, Any]] = []
        self.aborted: list[bytes] = []
        self.notes: list[Note] = []
        self.reports: list[Report] = []
        for cell in CELLS:
            self.up(cell)
        self.sent.clear()
        self.notes.clear()

    def do(self, event: Event, cell: str = "") -> list[Action]:
        actions = self.core.handle(event, self.now, cell)
        self.core.check_invariants()
        for action in actions:
            match action:
                case ToRouter(message=message, cell=at):
                    self.sent.append((at, message))
                case ToWorker(worker=worker, message=Abort()):
                    self.aborted.append(worker)
                case Note():
                    self.notes.append(action)
                case Report():
                    self.reports.append(action)
        return actions

    def up(self, cell: str, fleet: Fleet = READY) -> None:
        self.do(RouterUp(), cell)
        self.do(FromRouter(msgspec.structs.replace(READY, model="other")), cell)
        self.do(FromRouter(fleet), cell)

    def lose(self, cell: str) -> None:
        self.do(RouterDown(), cell)

    def open(self, tenant: str, request_id: str = "r", **more: Any) -> str:
        """Returns the cell that it was submitted to; empty for none."""
        self.do(Opened(*self.opened(tenant, request_id, **more)))
        submits = self.submits()
        return submits[0][0] if submits else ""

    def opened(self, tenant: str, request_id: str, **more: Any) -> tuple[Any, ...]:
        """The arguments of `Opened`."""
        sampling = Sampling(max_tokens=50)
        values: dict[str, Any] = {"session": ""} | more
        prompt = values.pop("prompt", [1, 2])
        model = values.pop("model", "m")
        spec = RequestSpec(Kind.CHAT, request_id, model, 0, prompt, sampling, **values)
        answer = self.answers[request_id] = Once()
        detokenizer = ByteLevelDetokenizer(PIECES)
        stream = TextStream(Journal(prompt, 50), sampling, detokenizer, answer, stops=())
        return spec, stream, answer, Caller(key_id=tenant, tenant=tenant)

    def told(self) -> list[OtherCell | None]:
        """Of what was submitted since: what it told of the other cell, in whole milliseconds."""
        found = [m.other_cell for _, m in self.sent if isinstance(m, Submit)]
        return [
            known
            if known is None or known.left_ms is None
            else msgspec.structs.replace(known, left_ms=round(known.left_ms))
            for known in found
        ]

    def submits(self) -> list[tuple[str, int]]:
        """The cells and attempts of what was submitted since."""
        found = [(cell, m.attempt) for cell, m in self.sent if isinstance(m, Submit)]
        self.sent = [(cell, m) for cell, m in self.sent if not isinstance(m, Submit)]
        return found

    def refuse(self, cell: str, code: Code = Code.OVERLOADED, request_id: str = "r") -> None:
        refused = Refused(
            code=code, message="full", request_id=request_id, attempt=1, retry_after_ms=2_000
        )
        self.do(FromRouter(refused), cell)

    def place(self, cell: str, attempt: int = 1, worker: str = "d0", request_id: str = "r") -> None:
        placed = Placed(
            request_id=request_id,
            attempt=attempt,
            decode=worker,
            decode_incarnation=f"of-{cell}",
        )
        self.do(FromRouter(placed), cell)

    def token(
        self, cell: str, index: int, attempt: int = 1, end: str = "", request_id: str = "r"
    ) -> None:
        delta = Delta(request_id, attempt, index, [97 + index % 26], finish_reason=end)
        self.do(Stepped(f"d0|of-{cell}".encode(), [delta]))

    def wait(self, seconds: float) -> None:
        ends = self.now + seconds
        while self.now < ends:
            self.now += 0.1
            self.do(Tick())

    def error(self) -> BatonError:
        error = self.answers["r"].error
        assert error is not None
        return error


def test_all_requests_of_a_tenant_go_to_its_cell() -> None:
    rig = Rig()
    for cells in (("c0", "c1"), ("c1", "c0"), ("c2", "c0")):
        tenant = tenant_of(*cells)
        assert {rig.open(tenant, f"{tenant}-{n}") for n in range(5)} == {cells[0]}


def test_requests_without_a_tenant_are_spread_by_session_and_else_by_prompt() -> None:
    rig = Rig()
    sessions = {s: rig.open("", f"s{s}", session=f"s{s}") for s in range(40)}
    assert set(sessions.values()) == set(CELLS)
    again = {s: rig.open("", f"a{s}", session=f"s{s}", prompt=[s, 3]) for s in range(40)}
    assert again == sessions
    prompts = {p: rig.open("", f"p{p}", prompt=[p] * 300) for p in range(40)}
    assert set(prompts.values()) == set(CELLS)
    longer = {p: rig.open("", f"l{p}", prompt=[p] * 300 + [9]) for p in range(40)}
    assert longer == prompts


@pytest.mark.parametrize("how", ["no router", "no worker"])
def test_a_new_request_of_a_lost_cell_goes_to_the_next(how: str) -> None:
    rig = Rig()
    if how == "no router":
        rig.lose("c0")
    else:
        rig.up("c0", NOT_READY)
    assert rig.open(tenant_of("c0", "c2")) == "c2"
    (note,) = [note for note in rig.notes if note.event == "request.spilled"]
    assert note.sentence == "cell c0 is lost; c2 serves the request"
    rig.refuse("c2")
    assert rig.submits() == []
    assert rig.error().code is Code.OVERLOADED


def test_where_both_are_lost_it_waits_in_its_own() -> None:
    rig = Rig()
    rig.lose("c0")
    rig.lose("c1")
    assert rig.open(tenant_of("c0", "c1")) == ""
    rig.wait(1.0)
    assert rig.submits() == []
    rig.up("c0")
    assert rig.submits() == [("c0", 1)]


@pytest.mark.parametrize(
    "code", [Code.OVERLOADED, Code.QUEUE_FULL, Code.NO_CAPACITY, Code.DRAINING]
)
def test_what_a_cell_has_no_room_for_goes_to_the_next_as_a_first_attempt(code: Code) -> None:
    rig = Rig()
    rig.open(tenant_of("c1", "c0"))
    rig.refuse("c1", code)
    assert rig.submits() == [("c0", 1)]
    assert rig.answers["r"].error is None
    rig.place("c0")
    rig.token("c0", 0, end="length")
    assert rig.answers["r"].joined_text == "a"
    assert [(report.cell, report.summary.attempt) for report in rig.reports] == [("c0", 1)]
    assert not [m for _, m in rig.sent if isinstance(m, Cancel)]


def test_a_second_refusal_is_the_answer() -> None:
    rig = Rig()
    rig.open(tenant_of("c1", "c0"))
    rig.refuse("c1")
    rig.submits()
    rig.refuse("c0", Code.QUEUE_FULL)
    assert rig.submits() == []
    assert rig.error().code is Code.QUEUE_FULL
    assert rig.error().retry_after_ms == 2_000


@pytest.mark.parametrize(
    "code", [Code.RATE_LIMITED, Code.INVALID_REQUEST, Code.REQUEST_QUARANTINED]
)
def test_what_concerns_the_key_or_the_request_is_refused_at_once(code: Code) -> None:
    rig = Rig()
    rig.open(tenant_of("c1", "c0"))
    rig.refuse("c1", code)
    assert rig.submits() == []
    assert rig.error().code is code


def test_a_refusal_stands_where_the_next_cell_is_lost() -> None:
    rig = Rig()
    rig.lose("c0")
    rig.open(tenant_of("c1", "c0"))
    rig.refuse("c1")
    assert rig.error().code is Code.OVERLOADED


def test_few_refusals_are_tried_again() -> None:
    rig = Rig(cell_spill_share=0.05)
    tenant = tenant_of("c1", "c0")
    for n in range(200):
        rig.open(tenant, f"r{n}")
        rig.refuse("c1", request_id=f"r{n}")
    assert rig.core.cells["c0"].spilled == pytest.approx(SPILLS_AT_ONCE + 200 * 0.05, abs=1)


def test_a_stream_of_a_lost_cell_goes_on_in_the_next_after_its_tokens() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.place("c0")
    rig.token("c0", 0)
    rig.token("c0", 1)
    rig.lose("c0")
    rig.do(WorkerGone(b"d0|of-c0", "killed"))
    rig.wait(LOST_SECONDS - 0.2)
    assert rig.submits() == []
    rig.wait(0.3)
    assert rig.submits() == [("c1", 2)]
    rig.place("c1", attempt=2)
    rig.token("c0", 2)
    assert rig.aborted == [b"d0|of-c0"]
    rig.token("c1", 0, attempt=2)
    assert rig.answers["r"].joined_text == "aba"
    rig.up("c0")
    rig.lose("c1")
    rig.do(WorkerGone(b"d0|of-c1", "killed"))
    rig.wait(2.0)
    assert rig.submits() == []


def test_a_cell_whose_router_is_back_in_time_keeps_its_requests() -> None:
    rig = Rig()
    tenant = tenant_of("c0", "c1")
    rig.open(tenant)
    for _ in range(3):
        rig.lose("c0")
        rig.wait(LOST_SECONDS - 0.1)
        rig.up("c0")
        rig.wait(0.3)
    assert {cell for cell, _ in rig.submits()} <= {"c0"}


def test_streams_of_a_cell_that_only_lost_its_router_stay() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.place("c0")
    rig.token("c0", 0)
    rig.lose("c0")
    for index in range(1, 5):
        rig.wait(LOST_SECONDS)
        rig.token("c0", index)
    assert rig.submits() == []
    assert rig.answers["r"].joined_text == "abcde"


def test_what_a_router_had_and_lost_its_workers_for_is_cancelled_there() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.do(FromRouter(NOT_READY), "c0")
    rig.wait(LOST_SECONDS + 0.2)
    assert rig.submits() == [("c1", 2)]
    assert [(cell, m.attempt) for cell, m in rig.sent if isinstance(m, Cancel)] == [("c0", 1)]


def test_a_router_that_comes_back_is_told_what_went_on_elsewhere() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.lose("c0")
    rig.wait(LOST_SECONDS + 0.2)
    assert rig.submits() == [("c1", 2)]
    rig.sent.clear()
    rig.up("c0")
    assert [(cell, m.attempt) for cell, m in rig.sent if isinstance(m, Cancel)] == [("c0", 1)]


def test_streams_of_other_cells_are_untouched() -> None:
    rig = Rig()
    rig.open(tenant_of("c1", "c0"))
    rig.place("c1")
    rig.token("c1", 0)
    rig.lose("c0")
    rig.do(WorkerGone(b"d0|of-c0", "killed"))
    for index in range(1, 5):
        rig.wait(LOST_SECONDS)
        rig.token("c1", index)
    assert rig.answers["r"].joined_text == "abcde"
    assert rig.submits() == []
    assert rig.aborted == []


def test_a_cell_that_is_lost_with_the_next_one_keeps_what_it_holds() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.lose("c0")
    rig.lose("c1")
    rig.wait(2.0)
    rig.submits()
    rig.up("c1")
    rig.wait(0.2)
    assert rig.submits() == [("c1", 2)]


def test_nothing_moves_while_the_gateway_stops() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.do(DrainStarted())
    rig.lose("c0")
    rig.wait(1.0)
    assert [cell for cell, _ in rig.submits()] == []


def test_tokens_may_overtake_the_placement() -> None:
    rig = Rig()
    rig.open(tenant_of("c2", "c0"))
    rig.token("c2", 0)
    rig.place("c2")
    rig.token("c2", 1, end="length")
    assert rig.answers["r"].joined_text == "ab"


def test_tokens_that_nobody_knows_are_aborted() -> None:
    rig = Rig()
    rig.token("c2", 0)
    assert rig.aborted == [b"d0|of-c2"]


def test_a_worker_that_comes_or_goes_concerns_its_cell() -> None:
    rig = Rig()
    rig.open(tenant_of("c2", "c0"))
    rig.place("c2")
    rig.token("c2", 0)
    rig.do(WorkerUp(b"d0|of-c2"))
    assert rig.submits() == [("c2", 2)]


def test_a_client_that_leaves_or_comes_is_told_to_its_cell() -> None:
    rig = Rig()
    rig.open(tenant_of("c2", "c0"))
    rig.sent.clear()
    rig.do(Attended("r", attended=False))
    rig.do(Closed("r", "gone"))
    assert [(cell, type(m).__name__) for cell, m in rig.sent] == [
        ("c2", "Abandoned"),
        ("c2", "Cancel"),
    ]
    assert rig.core.active == 0
    assert rig.do(Closed("r", "gone")) == []


def test_each_cell_has_its_own_orders_for_workers() -> None:
    rig = Rig()
    rig.sent.clear()
    order = ScaleOrder(
        id="o1",
        model="m",
        role=Role.DECODE,
        out=True,
        count=1,
        why="",
        age_ms=0.0,
        remaining_ms=9_000.0,
        asked=False,
    )
    rig.do(FromRouter(KeepOrder(model="m", order=order)), "c1")
    rig.up("c0")
    kept = [(cell, len(m.orders)) for cell, m in rig.sent if isinstance(m, KeptOrders)]
    assert kept == [("c1", 1), ("c0", 0)]


def test_the_limit_of_live_requests_holds_over_all_cells() -> None:
    rig = Rig(max_streams=3)
    tenants = [tenant_of("c0", "c1"), tenant_of("c1", "c0"), tenant_of("c2", "c0")]
    for n, tenant in enumerate(tenants):
        assert rig.open(tenant, f"r{n}")
    rig.open(tenants[0], "r")
    assert rig.error().code is Code.QUEUE_FULL
    assert rig.core.active == 3
    assert rig.core.live_of("m") == (3, 3)


def test_the_fleet_is_that_of_a_cell_that_can_serve() -> None:
    rig = Rig()
    for cell in ("c0", "c1"):
        rig.do(FromRouter(NOT_READY), cell)
    fleet = rig.core.fleet_of("m")
    assert fleet is not None
    assert fleet.ready
    rig.do(FromRouter(NOT_READY), "c2")
    fleet = rig.core.fleet_of("m")
    assert fleet is not None
    assert not fleet.ready
    assert rig.core.fleet_of("unknown") is None


def test_a_gateway_has_a_router_while_one_cell_has() -> None:
    rig = Rig()
    rig.lose("c0")
    rig.lose("c1")
    assert rig.core.router_up
    rig.lose("c2")
    assert not rig.core.router_up


def test_how_many_requests_each_cell_was_given_is_counted() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"), "r0")
    rig.open(tenant_of("c1", "c0"), "r")
    rig.refuse("c1")
    counts = {name: (cell.home, cell.spilled) for name, cell in rig.core.cells.items()}
    assert counts == {"c0": (1, 1), "c1": (1, 0), "c2": (0, 0)}


def test_without_cells_events_pass_through() -> None:
    core = CellsCore(GatewayConfig(), 100, {})
    assert [type(action) for action in core.handle(RouterUp(), 1.0)] == [ToRouter]
    assert core.router_up
    assert list(core.cells) == [""]


def test_a_second_cell_hears_that_the_first_serves_the_key() -> None:
    rig = Rig()
    tenant = tenant_of("c1", "c0")
    rig.open(tenant, "r0")
    rig.open(tenant)
    rig.sent.clear()
    rig.refuse("c1")
    assert rig.told() == [OtherCell(serves=True, live=1)]


def test_each_cell_hears_since_when_a_key_no_longer_uses_the_other() -> None:
    rig = Rig()
    tenant = tenant_of("c0", "c1")
    rig.open(tenant, "home")
    rig.lose("c0")
    rig.now += 0.2
    rig.open(tenant, "away")
    rig.up("c0")
    rig.sent.clear()
    rig.now += 0.3
    rig.do(Opened(*rig.opened(tenant, "back")))
    rig.do(Opened(*rig.opened(tenant_of("c2", "c0"), "of another")))
    assert rig.told() == [OtherCell(left_ms=300, live=1), None]


def test_what_is_lost_hears_nothing_and_the_other_for_how_long_and_what_stays() -> None:
    rig = Rig()
    tenant = tenant_of("c0", "c1")
    rig.do(Opened(*rig.opened(tenant, "home")))
    rig.lose("c0")
    rig.now += 0.2
    rig.do(Opened(*rig.opened(tenant, "away")))
    assert rig.told() == [None, OtherCell(left_ms=200, live=1)]


def test_what_leaves_a_lost_cell_is_not_counted_as_staying_there() -> None:
    rig = Rig()
    tenant = tenant_of("c0", "c1")
    rig.lose("c0")
    rig.lose("c1")
    rig.open(tenant, "r0")
    rig.open(tenant, "r1")
    rig.wait(LOST_SECONDS)
    rig.up("c1")
    rig.sent.clear()
    rig.wait(0.1)
    assert [known and known.live for known in rig.told()] == [1, 0]


def test_a_model_that_its_cell_does_not_know_is_served_by_the_next() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"), model="rare")
    rig.do(FromRouter(msgspec.structs.replace(READY, model="rare")), "c1")
    rig.wait(LOST_SECONDS + 0.2)
    assert rig.submits() == [("c1", 2)]


@pytest.mark.parametrize("stood_still", [False, True])
def test_after_it_stood_still_itself_a_gateway_blames_no_worker(stood_still: bool) -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.place("c0")
    rig.token("c0", 0)
    rig.wait(0.9)
    rig.now += 0.6 if stood_still else 0.3
    rig.do(Tick())
    assert rig.submits() == ([] if stood_still else [("c0", 2)])


def test_what_a_stream_hears_when_it_goes_on_in_its_own_cell_is_no_reason_to_leave_it() -> None:
    """The router has it tried again, as it does without cells."""
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.place("c0")
    rig.token("c0", 0)
    rig.do(WorkerGone(b"d0|of-c0", "killed"))
    assert rig.submits() == [("c0", 2)]
    refused = Refused(
        code=Code.OVERLOADED, message="", request_id="r", attempt=2, retry_after_ms=9_000
    )
    rig.do(FromRouter(refused), "c0")
    rig.wait(2.0)
    assert rig.submits() == []
    assert rig.answers["r"].error is None


def test_a_model_that_a_cell_can_still_serve_stays() -> None:
    rig = Rig()
    tenant = tenant_of("c0", "c1")
    rig.open(tenant, "r0")
    rig.open(tenant, "r1", model="other")
    rig.do(FromRouter(NOT_READY), "c0")
    rig.wait(2 * LOST_SECONDS)
    moved = [(cell, m.request_id) for cell, m in rig.sent if isinstance(m, Submit)]
    assert moved == [("c1", "r0")]


def test_another_cell_is_not_told_of_workers_of_the_first() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.place("c0")
    rig.token("c0", 0)
    rig.wait(3.0)
    (left,) = [m.left for _, m in rig.sent if isinstance(m, Submit) and m.attempt == 2]
    assert left == "d0|of-c0"
    rig.lose("c0")
    rig.sent.clear()
    rig.wait(1.0)
    assert [(m.attempt, m.left) for _, m in rig.sent if isinstance(m, Submit)] == [(3, "")]


def test_what_is_remembered_of_workers_and_tenants_is_bounded() -> None:
    rig = Rig()
    rig.open(tenant_of("c0", "c1"))
    rig.token("c0", 0)
    assert list(rig.core._of_worker) == [b"d0|of-c0"]
    rig.do(WorkerGone(b"d0|of-c0", "killed"))
    assert not rig.core._of_worker
    for n in range(rendezvous.SLOTS):
        rig.core._two_cells(b"%d" % n)
    rig.core.check_invariants()

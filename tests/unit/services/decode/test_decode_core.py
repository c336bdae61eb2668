"""The decode worker's decisions, one event at a time."""

import msgspec
import pytest

from common.blocks import Kept, KvGroup
from common.engine.port import Batch, ColdAfter, Output
from common.errors import Code
from common.kv.messages import KvDone
from common.messages import (
    Abort,
    DecodeStarted,
    Delta,
    Ended,
    ImageFeatures,
    KvHolder,
    KvReport,
    Message,
    PairTrouble,
    Prefill,
    RequestBody,
    Sampling,
    Ticket,
)
from common.net.wire import pack_ids
from common.worker.actions import (
    AbortInEngine,
    Action,
    AddToEngine,
    Dispatched,
    EngineRefused,
    GatewayGone,
    ToGateway,
    ToRouter,
)
from services.decode.core import DecodeCore
from services.decode.grant_limit import GrantLimit, grant_limit_of
from tests.rigs import messages

IMAGE = ImageFeatures(digest="d", offset=0, length=2, data=b"pixels")
BODY = RequestBody(
    prompt_ids=pack_ids([5, 6]), sampling=Sampling(max_tokens=9, seed=3), images=(IMAGE,)
)


def ticket(incarnation: str = "i") -> Ticket:
    return messages.ticket("r", 1, prefill_incarnation="q", decode_incarnation=incarnation)


def dispatch(
    request_id: str = "r", attempt: int = 1, gateway: str = "g0", with_ticket: Ticket | None = None
) -> Dispatched:
    return Dispatched(messages.decode(request_id, attempt, gateway, ticket=with_ticket), BODY)


def step(*outputs: Output) -> Batch:
    return Batch(outputs=list(outputs))


class Bench:
    """A core whose invariants are checked after every event."""

    def __init__(
        self, seqs: int = 4, kv_tokens: int = 10_000, *, drafter_cold: ColdAfter = "none"
    ) -> None:
        limit = GrantLimit(seqs, kv_tokens, 16)
        self.core = DecodeCore("d0", "i", limit, drafter_cold=drafter_cold)

    def __call__(self, event: object, now: float = 0.0) -> list[Action]:
        actions = self.core.handle(event, now)  # type: ignore[arg-type]
        self.core.check_invariants()
        return actions


@pytest.fixture
def bench() -> Bench:
    return Bench()


def to_router(actions: list[Action]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, ToRouter)]


def deltas(actions: list[Action]) -> list[Delta]:
    return [d for action in actions if isinstance(action, ToGateway) for d in action.deltas]


def test_a_decode_goes_to_the_engine_with_its_sampling_and_ticket() -> None:
    (action,) = Bench()(dispatch(with_ticket=ticket()))
    assert isinstance(action, AddToEngine)
    assert action.request.sampling == BODY.sampling
    assert action.request.ticket == ticket()
    assert action.request.prompt_ids == [5, 6]
    assert action.request.images == (IMAGE,)


def test_tokens_are_indexed_and_the_end_is_told_once_to_both(bench: Bench) -> None:
    bench(dispatch(), 1.0)
    first = bench(step(Output("r#1", [10, 11], cached_tokens=4)), 1.25)
    assert deltas(first) == [Delta("r", 1, 0, [10, 11], cached_tokens=4)]
    (started,) = to_router(first)
    assert isinstance(started, DecodeStarted)
    assert (started.elapsed_ms, started.cached_tokens, started.kv) == (250.0, 4, None)
    last = bench(step(Output("r#1", [12], "stop", 12)), 1.75)
    assert deltas(last) == [Delta("r", 1, 2, [12], "stop", 12)]
    (ended,) = to_router(last)
    assert ended == Ended(
        request_id="r", attempt=1, finish_reason="stop", completion_tokens=3, decode_ms=500.0
    )
    assert bench(step(Output("r#1", [13])), 2.0) == []
    assert bench.core.active == 0


def test_one_step_is_one_message_per_gateway(bench: Bench) -> None:
    for request_id, gateway in (("a", "g0"), ("b", "g1"), ("c", "g0")):
        bench(dispatch(request_id, gateway=gateway))
    actions = bench(step(*(Output(f"{r}#1", [1]) for r in "abc")))
    sends = [a for a in actions if isinstance(a, ToGateway)]
    assert [(s.gateway, [d.request_id for d in s.deltas]) for s in sends] == [
        ("g0", ["a", "c"]),
        ("g1", ["b"]),
    ]


REPORT = KvReport(blocks=3, complete=True, payload_bytes=999)
MOVED = KvDone(request_id="r", attempt=1, side="receive", report=REPORT)


def test_what_the_handoff_moved_is_reported_with_the_first_token(bench: Bench) -> None:
    bench(dispatch(with_ticket=ticket()))
    assert bench(Batch(kv_done=[MOVED])) == []
    (started,) = to_router(bench(step(Output("r#1", [1]))))
    assert isinstance(started, DecodeStarted)
    assert started.kv == REPORT


def test_a_report_that_comes_after_the_first_token_is_waited_for_but_the_tokens_are_not() -> None:
    bench = Bench()
    bench(dispatch(with_ticket=ticket()), 1.0)
    output = Output("r#1", [1], cached_tokens=7, handed_over_tokens=5, stored_tokens=4)
    first = bench(step(output), 2.0)
    told = Delta("r", 1, 0, [1], cached_tokens=7, handed_over_tokens=5, stored_tokens=4)
    assert deltas(first) == [told]
    assert to_router(first) == []
    (started,) = to_router(bench(Batch(kv_done=[MOVED]), 2.5))
    assert started == DecodeStarted(
        request_id="r", attempt=1, elapsed_ms=1000.0, cached_tokens=7, kv=REPORT, kv_ms=1000.0
    )
    assert to_router(bench(Batch(kv_done=[MOVED]), 3.0)) == []


def test_a_report_that_never_comes_is_waited_for_to_the_end_of_the_stream_only() -> None:
    bench = Bench()
    bench(dispatch(with_ticket=ticket()))
    bench(step(Output("r#1", [1])))
    started, ended = to_router(bench(step(Output("r#1", [2], "length"))))
    assert isinstance(started, DecodeStarted)
    assert started.kv is None
    assert isinstance(ended, Ended)
    (again,) = to_router(bench(Batch(kv_done=[MOVED])))
    assert again == msgspec.structs.replace(started, kv=REPORT, kv_ms=started.elapsed_ms)
    assert to_router(bench(Batch(kv_done=[MOVED]))) == []


def test_a_report_of_a_stream_that_had_no_token_or_its_report_is_told_no_more() -> None:
    bench = Bench()
    bench(dispatch(with_ticket=ticket()))
    bench(Abort(request_id="r", attempt=1, reason="client gone"))
    assert bench(Batch(kv_done=[MOVED])) == []
    bench(dispatch(attempt=2, with_ticket=msgspec.structs.replace(ticket(), attempt=2)))
    done = msgspec.structs.replace(MOVED, attempt=2)
    bench(Batch(kv_done=[done]))
    bench(step(Output("r#2", [1], "length")))
    assert bench(Batch(kv_done=[done])) == []


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("after", "canonical", "blocks", "cold"),
    [
        ("all", False, 3, True),
        ("all", False, 0, False),
        ("canonical", True, 3, True),
        ("canonical", True, 0, False),
        ("canonical", False, 3, False),
        ("none", True, 3, False),
    ],
)
def test_a_drafter_that_got_no_kv_is_reported_with_a_handoff_that_moved_some(
    after: ColdAfter, blocks: int, *, canonical: bool, cold: bool, late: bool
) -> None:
    bench = Bench(drafter_cold=after)
    bench(dispatch(with_ticket=ticket()))
    report = KvReport(blocks=blocks, canonical=canonical)
    done = msgspec.structs.replace(MOVED, report=report)
    events = [step(Output("r#1", [1], "length")), Batch(kv_done=[done])]
    told = [to_router(bench(event)) for event in (events if late else reversed(events))]
    reports = [one for one in (*told[0], *told[1]) if isinstance(one, DecodeStarted)]
    assert reports[-1].kv is not None
    assert reports[-1].kv.drafter_cold is cold


def test_an_abort_frees_the_engine_and_answers_cancelled_once(bench: Bench) -> None:
    bench(dispatch())
    abort = Abort(request_id="r", attempt=1, reason="client gone")
    actions = bench(abort)
    assert actions[0] == AbortInEngine("r", 1)
    (ended,) = to_router(actions)
    assert isinstance(ended, Ended)
    assert (ended.error, ended.message) == ("cancelled", "client gone")
    assert bench(abort) == []
    assert bench(step(Output("r#1", [1]))) == []
    assert bench.core.dropped == 2


def test_a_lost_gateway_drops_only_its_own_streams(bench: Bench) -> None:
    bench(dispatch("a", gateway="g0"))
    bench(dispatch("b", gateway="g1"))
    actions = bench(GatewayGone("g0", "k", "closed"))
    assert [a for a in actions if isinstance(a, AbortInEngine)] == [AbortInEngine("a", 1)]
    assert bench.core.active == 1
    assert bench(GatewayGone("g1", "another-incarnation", "closed")) == []
    assert bench.core.active == 1


def test_a_newer_attempt_replaces_the_older_and_an_older_one_is_dropped(bench: Bench) -> None:
    bench(dispatch(attempt=2))
    assert bench(dispatch(attempt=1)) == []
    assert bench(dispatch(attempt=2)) == []
    actions = bench(dispatch(attempt=3))
    assert actions[0] == AbortInEngine("r", 2)
    assert isinstance(actions[-1], AddToEngine)
    assert bench(step(Output("r#2", [1]))) == []
    assert deltas(bench(step(Output("r#3", [1])))) == [Delta("r", 3, 0, [1])]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (EngineRefused("r", 1, "context_length_exceeded", "too long"), "context_length_exceeded"),
        (step(Output("r#1", [], error="engine_failed", message="too long")), "engine_failed"),
    ],
)
def test_engine_errors_reach_gateway_and_router(event: object, code: str, bench: Bench) -> None:
    bench(dispatch())
    actions = bench(event)
    (delta,) = deltas(actions)
    assert (delta.error, delta.message) == (code, "too long")
    (ended,) = to_router(actions)
    assert isinstance(ended, Ended)
    assert ended.error == code
    assert bench.core.active == 0


def test_a_ticket_for_another_incarnation_is_refused_to_both(bench: Bench) -> None:
    actions = bench(dispatch(with_ticket=ticket("old")))
    (delta,) = deltas(actions)
    (ended,) = to_router(actions)
    assert isinstance(ended, Ended)
    assert delta.error == ended.error == "worker_lost"
    assert bench.core.active == 0


@pytest.mark.parametrize(
    ("bench", "says"),
    [
        (Bench(seqs=2), "2 streams are already held"),
        (Bench(kv_tokens=40), "48 KV tokens would be promised, 40 may be"),
    ],
)
def test_what_no_router_should_have_promised_is_declined_to_the_router(
    bench: Bench, says: str
) -> None:
    """Two routers may each believe the same slot free. The gateway hears of it by its router."""
    for i in range(2):
        bench(dispatch(f"r{i}"))
    actions = bench(dispatch("one-more"))
    assert deltas(actions) == []
    (ended,) = to_router(actions)
    assert isinstance(ended, Ended)
    assert (ended.error, ended.message) == ("no_capacity", says)
    assert bench.core.active == 2
    bench(Abort(request_id="r0", attempt=1, reason="test"))
    assert to_router(bench(dispatch("again"))) == []
    assert bench.core.active == 2


def test_its_room_is_what_routers_count() -> None:
    room = grant_limit_of(messages.capacity(), 0.95)
    assert room == GrantLimit(8, 95 * 16, 16)
    assert room.kv_tokens(900) == 57 * 16
    ahead = grant_limit_of(messages.capacity(), 0.95, 0.3)
    assert ahead == room._replace(streams_max=8 + 2), "slots are promised ahead, and KV is not"
    windowed = grant_limit_of(messages.capacity(groups=(KvGroup(16, Kept.WINDOW, 32),)), 0.95)
    assert windowed.kv_tokens(900) == 3 * 16


def test_it_says_what_it_holds(bench: Bench) -> None:
    bench(dispatch("r1"))
    bench(dispatch("r2", with_ticket=ticket()))
    bench(step(Output("r1#1", [5])))
    first, second = bench.core.held_attempts()
    assert (first.request_id, first.started, first.prefill) == ("r1", True, "")
    assert (second.request_id, second.started, second.prefill) == ("r2", False, "p0|q")
    assert bench.core.held_attempt("r1", 1) == first.__class__(
        "r1", 1, 2, 9, "d0|i", "", first.gateway
    )
    assert bench.core.held_attempt("r1", 2) is None


def test_a_prefill_is_not_its_business(bench: Bench) -> None:
    prefill = Prefill(request_id="r", attempt=1, ticket=ticket())
    assert bench(Dispatched(prefill, BODY)) == []
    assert bench.core.dropped == 1


@pytest.mark.parametrize("streaming", [True, False])
def test_a_pair_in_trouble_is_told_once_even_when_its_stream_is_gone(streaming: bool) -> None:
    bench = Bench()
    if streaming:
        bench(dispatch(with_ticket=ticket()))
    done = messages.kv_done(
        report=KvReport(retries=1, digest_mismatches=2),
        error=Code.KV_TRANSFER_FAILED,
        message="damaged again",
        trouble="digest",
        peer="p0",
        peer_incarnation="q",
    )
    assert bench(Batch(kv_done=[done])) == [
        ToRouter(
            PairTrouble(
                request_id="r",
                attempt=1,
                prefill="p0",
                prefill_incarnation="q",
                kind="digest",
                message="damaged again",
            )
        )
    ]


def test_a_handoff_that_failed_without_trouble_says_nothing_of_the_pair(bench: Bench) -> None:
    bench(dispatch(with_ticket=ticket()))
    failed = messages.kv_done(error=Code.KV_TRANSFER_FAILED)
    assert bench(Batch(kv_done=[failed])) == []


def test_the_engine_is_told_who_gets_copies_and_routers_are_told_too() -> None:
    bench = Bench()
    holder = KvHolder(name="d1", incarnation="j", fingerprint="f", kv_address="h:1")
    (added,) = bench(Dispatched(messages.decode(holder=holder), BODY))
    assert isinstance(added, AddToEngine)
    assert added.request.holder == holder
    (held,) = bench.core.held_attempts()
    assert held.holder == "d1|j"

"""The prefill worker's decisions, one event at a time."""

import msgspec
import pytest

from common.engine.port import Batch, EngineRequest, Output
from common.identity import pull_key
from common.messages import (
    Abort,
    Decode,
    ImageFeatures,
    KvSource,
    PairTrouble,
    Prefill,
    PrefillEnded,
    RequestBody,
    Sampling,
)
from common.net.wire import pack_ids
from common.worker.actions import (
    AbortInEngine,
    Action,
    AddToEngine,
    Dispatched,
    EngineRefused,
    GatewayGone,
    ToRouter,
)
from services.prefill.core import ATTEMPTS_PER_SEQ_MAX, PrefillCore
from tests.rigs.messages import kv_done, ticket

IMAGE = ImageFeatures(digest="d", offset=0, length=2, data=b"pixels")
BODY = RequestBody(
    prompt_ids=pack_ids([5, 6, 7]),
    sampling=Sampling(max_tokens=99, temperature=0.7),
    cache_salt="s",
    images=(IMAGE,),
)


def dispatch(request_id: str = "r", attempt: int = 1, incarnation: str = "i") -> Dispatched:
    handed = ticket(request_id, attempt, prefill_incarnation=incarnation)
    return Dispatched(Prefill(request_id=request_id, attempt=attempt, ticket=handed), BODY)


def handed(request_id: str = "r", attempt: int = 1) -> Batch:
    return Batch(kv_done=[kv_done(request_id, attempt, side="send")])


def computed(key: str = "r#1", error: str = "") -> Batch:
    output = Output(key, [3], "" if error else "length", cached_tokens=2, error=error, message="m")
    return Batch(outputs=[output])


class Bench:
    """A core whose invariants are checked after every event."""

    def __init__(self, seqs: int = 4) -> None:
        self.core = PrefillCore("p0", "i", seqs)

    def __call__(self, event: object, now: float = 0.0) -> list[Action]:
        actions = self.core.handle(event, now)  # type: ignore[arg-type]
        self.core.check_invariants()
        return actions


@pytest.fixture
def bench() -> Bench:
    return Bench()


def sole(actions: list[Action]) -> PrefillEnded:
    (action,) = actions
    assert isinstance(action, ToRouter)
    assert isinstance(action.message, PrefillEnded)
    return action.message


def test_a_prefill_goes_to_the_engine_for_one_thrown_away_token() -> None:
    (action,) = Bench()(dispatch())
    assert isinstance(action, AddToEngine)
    request: EngineRequest = action.request
    assert (request.key, request.prompt_ids, request.cache_salt) == ("r#1", [5, 6, 7], "s")
    assert request.images == (IMAGE,)
    assert request.sampling == Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
    assert request.ticket == ticket("r", 1, prefill_incarnation="i")


def test_the_router_hears_once_when_it_is_computed_and_the_drain_waits_for_the_handoff() -> None:
    bench = Bench()
    bench(dispatch(), 1.0)
    ended = sole(bench(computed(), 1.5))
    assert (ended.elapsed_ms, ended.cached_tokens, ended.error) == (500.0, 2, "")
    assert bench.core.active == 1
    assert bench(computed(), 1.6) == []
    assert bench(handed()) == []
    assert bench.core.active == 0


def test_a_handoff_that_ends_before_the_engines_last_word_is_not_waited_for_again() -> None:
    bench = Bench()
    bench(dispatch())
    bench(handed())
    assert bench.core.active == 1
    assert sole(bench(computed())).error == ""
    assert bench.core.active == 0


def test_an_engine_error_ends_the_try_with_its_code(bench: Bench) -> None:
    bench(dispatch())
    ended = sole(bench(computed(error="engine_failed")))
    assert (ended.error, ended.message) == ("engine_failed", "m")
    assert bench.core.active == 0


def test_what_the_engine_refuses_is_told_to_the_router(bench: Bench) -> None:
    bench(dispatch())
    ended = sole(bench(EngineRefused("r", 1, "context_length_exceeded", "too long")))
    assert ended.error == "context_length_exceeded"
    assert bench.core.active == 0


def test_an_abort_always_reaches_the_engine_because_a_lease_may_outlive_the_try() -> None:
    bench = Bench()
    abort = Abort(request_id="r", attempt=1, reason="cancelled")
    assert bench(abort) == [AbortInEngine("r", 1)]
    bench(dispatch())
    assert bench(abort) == [AbortInEngine("r", 1)]
    assert bench.core.active == 0
    assert bench(computed()) == []
    assert bench.core.dropped == 1


def test_a_duplicate_dispatch_is_dropped_and_counted(bench: Bench) -> None:
    bench(dispatch())
    assert bench(dispatch()) == []
    assert bench.core.dropped == 1
    assert len(bench(dispatch(attempt=2))) == 1


def test_a_ticket_for_another_incarnation_is_refused(bench: Bench) -> None:
    ended = sole(bench(dispatch(incarnation="old")))
    assert ended.error == "no_capacity"
    assert "another incarnation" in ended.message
    assert bench.core.active == 0


def test_the_table_is_bounded_and_says_so() -> None:
    bench = Bench(seqs=1)
    for i in range(ATTEMPTS_PER_SEQ_MAX):
        bench(dispatch(f"r{i}"))
    ended = sole(bench(dispatch("one-more")))
    assert ended.error == "no_capacity"
    assert bench.core.active == ATTEMPTS_PER_SEQ_MAX


def test_what_is_not_its_business_is_dropped(bench: Bench) -> None:
    decode = Decode(
        request_id="r", attempt=1, gateway="g", gateway_incarnation="k", stream_endpoint="e"
    )
    assert bench(Dispatched(decode, BODY)) == []
    assert bench(GatewayGone("g", "k", "closed")) == []
    receive = msgspec.structs.replace(handed().kv_done[0], side="receive")
    bench(dispatch())
    bench(computed())
    bench(Batch(kv_done=[receive]))
    assert bench.core.active == 1


SOURCE = KvSource(name="p1", incarnation="j", fingerprint="f", kv_address="h:1", tokens=2)


def pulled(error: str = "", trouble: str = "") -> Batch:
    done = kv_done(*pull_key(("r", 1)), side="receive", error=error)
    more = {"message": "why" if error else "", "trouble": trouble}
    return Batch(kv_done=[msgspec.structs.replace(done, peer="p1", peer_incarnation="j", **more)])


def test_the_engine_is_told_of_the_source(bench: Bench) -> None:
    order = dispatch()
    order = Dispatched(msgspec.structs.replace(order.message, source=SOURCE), BODY)
    (action,) = bench(order)
    assert isinstance(action, AddToEngine)
    assert action.request.source == SOURCE


def test_what_was_pulled_is_in_the_report_and_no_end_of_the_handoff(bench: Bench) -> None:
    bench(dispatch())
    assert bench(pulled()) == []
    ended = sole(bench(computed()))
    assert ended.pull is not None
    assert ended.pull_failed == ""
    assert bench.core.active == 1
    bench(handed())
    assert bench.core.active == 0


def test_a_pull_that_failed_is_told_and_its_pair_blamed(bench: Bench) -> None:
    bench(dispatch())
    (action,) = bench(pulled("kv_transfer_failed", "digest"))
    assert isinstance(action, ToRouter)
    assert action.message == PairTrouble(
        request_id="r",
        attempt=1,
        prefill="p1",
        prefill_incarnation="j",
        kind="digest",
        message="why",
    )
    ended = sole(bench(computed()))
    assert (ended.pull, ended.pull_failed) == (None, "why")

"""A request whose worker is lost: it goes on exactly, or says why it cannot."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.errors import Code
from common.messages import (
    Abort,
    Delta,
    Failed,
    Fleet,
    ImageFeatures,
    Placed,
    Refused,
    RequestBody,
    Sampling,
    Submit,
)
from common.net.wire import unpack_ids
from common.prefix import HASH_BYTES
from services.gateway.requests import recovery
from services.gateway.requests.events import (
    Action,
    DrainStarted,
    FromRouter,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
    ToWorker,
    WorkerGone,
)
from services.gateway.requests.recovery import remaining_sampling, resume_obstacle
from tests.unit.services.gateway.gate import D0, D1, Gate, sent


def running(**limits: Any) -> Gate:
    """One stream on d0 that has said `ab`, of a prompt of two tokens and at most 50 more."""
    gate = Gate(recovery=True, **limits)
    gate.open()
    gate.place()
    gate.token("ab")
    return gate


@pytest.fixture
def gate() -> Gate:
    return running()


def submitted(actions: list[Action]) -> tuple[Submit, RequestBody]:
    (sent,) = [a for a in actions if isinstance(a, ToRouter) and isinstance(a.message, Submit)]
    assert isinstance(sent.message, Submit)
    assert sent.body is not None
    return sent.message, sent.body


def place(gate: Gate, attempt: int, decode: str = "d1") -> None:
    gate.do(
        FromRouter(Placed(request_id="r", attempt=attempt, decode=decode, decode_incarnation="1"))
    )


def step(gate: Gate, attempt: int, index: int, text: str, end: str = "") -> list[Action]:
    delta = Delta("r", attempt, index, list(text.encode()), finish_reason=end)
    return gate.do(Stepped(D1, [delta]))


def test_images_go_with_every_attempt_and_tell_prompts_apart() -> None:
    gate = Gate(recovery=True)
    image = ImageFeatures(digest="d", offset=0, length=1, data=b"pixels")
    first, body = submitted(gate.open(images=(image,)))
    assert body.images == (image,)
    gate.place()
    gate.token("ab")
    failed = Failed(request_id="r", attempt=1, code="worker_lost", message="d0 was lost")
    second, body = submitted(gate.do(FromRouter(failed)))
    assert body.images == (image,)
    assert first.prompt_digest == second.prompt_digest
    other, _ = submitted(Gate().open())
    fleet = FromRouter(msgspec.structs.replace(THERE, block_tokens=1))
    named = []
    for images in ((), (image,)):
        gate = Gate()
        gate.do(fleet)
        named.append(submitted(gate.open(images=images))[0].prefix_hashes)
    assert len(named[0]) == len(named[1]) == 2 * HASH_BYTES
    assert named[0] != named[1]
    assert other.prompt_digest != first.prompt_digest


def test_a_stream_goes_on_after_what_was_said_with_exact_usage(gate: Gate) -> None:
    submit, body = submitted(gate.do(WorkerGone(D0, "its connection closed")))
    assert (submit.attempt, submit.prompt_tokens, submit.max_tokens) == (2, 4, 48)
    assert submit.left == D0.decode(), "the router may not know yet that it died"
    assert unpack_ids(body.prompt_ids) == [1, 2, *b"ab"]
    assert body.sampling.max_tokens == 48
    place(gate, 2)
    step(gate, 2, 0, "c")
    step(gate, 2, 1, "d", end="length")
    answer = gate.answers["r"]
    assert answer.joined_text == "abcd"
    assert answer.ending is not None
    assert answer.ending.usage.prompt == 2
    assert answer.ending.usage.completion == 4
    assert gate.core.counters.recovered == 1


def test_what_the_lost_worker_still_says_is_never_said_again(gate: Gate) -> None:
    gate.do(WorkerGone(D0, "x"))
    place(gate, 2)
    stale = gate.core.counters.stale
    gate.token("c", 2)
    assert gate.core.counters.stale == stale + 1
    step(gate, 2, 0, "c", end="length")
    assert gate.answers["r"].joined_text == "abc"


def test_a_loss_that_the_router_tells_of_first(gate: Gate) -> None:
    lost = Failed(request_id="r", attempt=1, code=Code.WORKER_LOST, message="d0 was lost")
    actions = gate.do(FromRouter(lost))
    assert sent(actions) == [(D0, "Abort"), "Submit"]
    assert gate.do(WorkerGone(D0, "x")) == []
    assert gate.do(FromRouter(lost)) == []


def test_tokens_lost_on_the_way_begin_a_new_attempt_and_stop_the_old(gate: Gate) -> None:
    actions = gate.token("d", 3)
    assert sent(actions) == [(D0, "Abort"), "Submit"]
    (abort,) = [a.message for a in actions if isinstance(a, ToWorker)]
    assert abort == Abort(request_id="r", attempt=1, reason=Code.STREAM_INTERRUPTED)


def test_without_recovery_the_client_hears_of_it_at_once() -> None:
    gate = running(recovery_ms=0)
    gate.core.lifecycle._recovers = False
    assert "Submit" not in sent(gate.do(WorkerGone(D0, "x")))
    assert gate.error().code is Code.STREAM_INTERRUPTED


THERE = Fleet(ready=True, prefill_ready=1, decode_ready=1, max_model_len=99)
RESTORES = msgspec.structs.replace(THERE, restores=True)


@pytest.mark.parametrize(
    ("fleet", "emitted", "found"),
    [(THERE, 1, True), (None, 1, True), (THERE, 0, False), (RESTORES, 1, False)],
)
def test_what_a_new_worker_cannot_know(fleet: Fleet | None, emitted: int, *, found: bool) -> None:
    assert bool(resume_obstacle(Sampling(max_tokens=9, seed=1), emitted, fleet)) is found


def test_a_later_attempt_says_how_much_of_its_prompt_was_emitted(gate: Gate) -> None:
    (_, body) = submitted(gate.do(WorkerGone(D0, "x")))
    assert body.emitted == 2
    assert body.sampling.max_tokens == 48


def test_a_fleet_that_restores_is_believed_while_no_decode_worker_is_known(gate: Gate) -> None:
    """The only one has just died."""
    gate.do(FromRouter(RESTORES))
    gate.do(FromRouter(Fleet(ready=False, prefill_ready=1, decode_ready=0, max_model_len=0)))
    fleet = gate.core.fleet_of("m")
    assert fleet is not None
    assert fleet.restores


def test_the_rest_of_what_was_asked() -> None:
    asked = Sampling(max_tokens=10, min_tokens=4, temperature=0.5)
    assert remaining_sampling(asked, 0) is asked
    assert remaining_sampling(asked, 3) == Sampling(max_tokens=7, min_tokens=1, temperature=0.5)
    assert remaining_sampling(asked, 6).min_tokens == 0
    assert remaining_sampling(Sampling(max_tokens=9, prompt_logprobs=1), 1).prompt_logprobs is None


def test_an_obstacle_is_said_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "resume_obstacle", lambda _sampling, _emitted, _fleet: "its seed")
    gate = running()
    assert "Submit" not in sent(gate.do(WorkerGone(D0, "x")))
    assert gate.error().code is Code.STREAM_INTERRUPTED
    assert "without its seed" in gate.error().message


def test_deaths_are_not_counted_here_and_the_routers_refusal_is_final(gate: Gate) -> None:
    """The router knows what else was on the workers."""
    for attempt in range(2, 7):
        gate.do(WorkerGone(D0 if attempt % 2 == 0 else D1, "x"))
        place(gate, attempt, decode="d1" if attempt % 2 == 0 else "d0")
    gate.do(WorkerGone(D1, "x"))
    sentence = "3 workers died with this prompt"
    refused = Refused(code=Code.REQUEST_QUARANTINED, message=sentence, request_id="r", attempt=7)
    assert "Submit" not in sent(gate.do(FromRouter(refused)))
    assert gate.core.active == 0
    assert gate.error().code is Code.STREAM_INTERRUPTED
    assert gate.error().message == sentence


def test_before_any_token_the_quarantine_has_its_own_code() -> None:
    gate = Gate(recovery=True)
    gate.open()
    refused = Refused(code=Code.REQUEST_QUARANTINED, message="x", request_id="r", attempt=1)
    gate.do(FromRouter(refused))
    assert gate.error().code is Code.REQUEST_QUARANTINED


def test_one_death_told_twice_is_one_death(gate: Gate) -> None:
    """The router may place on the dead worker once more before it knows."""
    gate.do(WorkerGone(D0, "x"))
    place(gate, 2, decode="d0")
    lost = Failed(request_id="r", attempt=2, code=Code.WORKER_LOST, message="d0 was lost")
    assert submitted(gate.do(FromRouter(lost)))[0].attempt == 3


def test_a_refusal_while_no_worker_is_there_is_waited_out() -> None:
    gate = running(recovery_ms=5_000)
    gate.do(WorkerGone(D0, "x"))
    refused = Refused(
        request_id="r", attempt=2, code=Code.NO_CAPACITY, message="none", retry_after_ms=2_000
    )
    assert gate.do(FromRouter(refused)) == []
    gate.now += 1.9
    assert gate.do(Tick()) == []
    gate.now += 0.2
    assert submitted(gate.do(Tick()))[0].attempt == 2
    gate.now += 3.0
    gate.do(FromRouter(refused))
    assert gate.error().code is Code.STREAM_INTERRUPTED


def test_a_new_router_that_does_not_know_what_waits_after_a_refusal_fails_nothing() -> None:
    gate = running(recovery_ms=9_000)
    gate.do(WorkerGone(D0, "x"))
    refused = Refused(
        request_id="r", attempt=2, code=Code.NO_CAPACITY, message="none", retry_after_ms=4_000
    )
    gate.do(FromRouter(refused))
    gate.do(RouterDown())
    gate.do(RouterUp())
    gate.now += 2.0
    unknown = Failed(request_id="r", attempt=2, code=Code.WORKER_LOST, message="dropped")
    assert gate.do(FromRouter(unknown)) == []
    gate.now += 2.1
    assert submitted(gate.do(Tick()))[0].attempt == 2


def test_a_refusal_that_comes_while_it_is_held_again_changes_nothing_but_the_time() -> None:
    """It was under way when the router was lost."""
    gate = running(recovery_ms=5_000)
    gate.do(WorkerGone(D0, "x"))
    gate.do(RouterDown())
    late = Refused(request_id="r", attempt=2, code=Code.NO_CAPACITY, message="", retry_after_ms=10)
    assert gate.do(FromRouter(late)) == []
    gate.now += 2.0
    assert submitted(gate.do(RouterUp()))[0].attempt == 2


def test_a_first_attempt_that_is_refused_is_answered_at_once() -> None:
    gate = Gate(recovery=True)
    gate.open()
    gate.do(FromRouter(Refused(request_id="r", attempt=1, code=Code.NO_CAPACITY, message="none")))
    assert gate.error().code is Code.NO_CAPACITY


def test_a_loss_while_no_router_answers_is_held_until_one_does() -> None:
    gate = running(recovery_ms=5_000)
    gate.do(RouterDown())
    assert sent(gate.do(WorkerGone(D0, "x"))) == []
    gate.now += 4.9
    assert gate.do(Tick()) == []
    assert submitted(gate.do(RouterUp()))[0].attempt == 2


def test_a_loss_while_no_router_answers_ends_when_its_time_is_over() -> None:
    gate = running(recovery_ms=5_000)
    gate.do(RouterDown())
    gate.do(WorkerGone(D0, "x"))
    gate.now += 5.1
    gate.do(Tick())
    assert gate.error().code is Code.STREAM_INTERRUPTED


def test_a_stopping_gateway_begins_nothing_anew(gate: Gate) -> None:
    gate.core.lifecycle.draining = True
    gate.do(WorkerGone(D0, "x"))
    assert gate.error().code is Code.STREAM_INTERRUPTED


def test_a_stopping_gateway_lets_streams_move_that_it_waits_for(gate: Gate) -> None:
    """Nothing is begun anew: the stream goes on from its KV."""
    gate.do(DrainStarted())
    moved = Delta("r", 1, 2, [], error=Code.MOVED.value)
    submit, _ = submitted(gate.do(Stepped(D0, [moved])))
    assert (submit.attempt, submit.moved_from) == (2, D0.decode())


@pytest.mark.parametrize("recovery", [True, False])
def test_only_where_streams_go_on_elsewhere_may_they_be_moved(*, recovery: bool) -> None:
    submit, _ = submitted(Gate(recovery=recovery).open())
    assert submit.resumable is recovery


def test_what_the_router_preempts_goes_on_and_is_no_death(gate: Gate) -> None:
    preempted = Failed(request_id="r", attempt=1, code=Code.PREEMPTED, message="KV is short")
    actions = gate.do(FromRouter(preempted))
    assert sent(actions) == [(D0, "Abort"), "Submit"]
    assert submitted(actions)[0].resumable
    place(gate, 2)
    assert submitted(gate.do(WorkerGone(D1, "x")))[0].attempt == 3


def test_tokens_of_an_attempt_that_was_not_asked_for_yet_are_nobodys(gate: Gate) -> None:
    """A worker that errs and goes on as the next attempt, in one message."""
    lost = Delta("r", 1, 2, [], error=Code.WORKER_LOST.value)
    actions = gate.do(Stepped(D0, [lost, Delta("r", 2, 0, [65])]))
    submit, _ = submitted(actions)
    assert submit.attempt == 2
    assert gate.answers["r"].token_ids == [*b"ab"]
    place(gate, 2)
    gate.do(Stepped(D1, [Delta("r", 2, 0, [67])]))
    assert gate.answers["r"].token_ids == [*b"abC"]


@pytest.mark.parametrize("code", [Code.MOVED, Code.DRAINING])
def test_a_stream_that_its_worker_gave_up_names_it_for_its_kv_until_it_is_placed(
    gate: Gate, code: Code
) -> None:
    actions = gate.do(Stepped(D0, [Delta("r", 1, 2, [], error=code, message="d0 is drained")]))
    assert sent(actions) == ["Submit"], "the worker knows, and so does the router"
    submit, body = submitted(actions)
    assert (submit.attempt, submit.moved_from, submit.left) == (2, D0.decode(), "")
    assert unpack_ids(body.prompt_ids)[-2:] == [*b"ab"]
    place(gate, 2)
    assert submitted(gate.do(WorkerGone(D1, "x")))[0].moved_from == ""


def test_a_worker_that_was_left_is_not_named_after_the_next_one_began(gate: Gate) -> None:
    """Its tokens may come though `Placed` was lost. The stream may move to the one it left."""
    gate.do(WorkerGone(D0, "its connection closed"))
    gate.do(Stepped(D1, [Delta("r", 2, 0, [65])]))
    actions = gate.do(Stepped(D1, [Delta("r", 2, 1, [], error=Code.MOVED, message="to d0")]))
    submit, _ = submitted(actions)
    assert (submit.attempt, submit.moved_from, submit.left) == (3, D1.decode(), "")


def test_a_next_attempt_that_is_lost_before_it_was_named_is_no_move(gate: Gate) -> None:
    """Else it would go on without the retry budget, from a worker that keeps nothing of it."""
    gate.do(Stepped(D0, [Delta("r", 1, 2, [], error=Code.MOVED)]))
    lost = Failed(request_id="r", attempt=2, code=Code.WORKER_LOST, message="it was lost")
    submit, _ = submitted(gate.do(FromRouter(lost)))
    assert (submit.attempt, submit.moved_from) == (3, "")


@pytest.mark.parametrize(("code", "ab"), [(Code.WORKER_LOST, True), (Code.MOVED, False)])
def test_where_no_kv_can_be_no_worker_is_named(code: Code, *, ab: bool) -> None:
    gate = Gate(recovery=True)
    gate.open()
    gate.place()
    if ab:
        gate.token("ab")
    actions = gate.do(Stepped(D0, [Delta("r", 1, 2 * ab, [], error=code)]))
    assert submitted(actions)[0].moved_from == ""


def test_moves_are_no_failures_and_may_be_many(gate: Gate) -> None:
    for attempt in range(1, recovery.ATTEMPTS_MAX + 3):
        worker = D1 if attempt > 1 else D0
        index = 2 if attempt == 1 else 1
        moved = Delta("r", attempt, index, [], error=Code.MOVED.value)
        assert submitted(gate.do(Stepped(worker, [moved])))[0].attempt == attempt + 1
        place(gate, attempt + 1)
        step(gate, attempt + 1, 0, "c")
    gate.do(WorkerGone(D1, "x"))
    assert gate.error().code is Code.STREAM_INTERRUPTED

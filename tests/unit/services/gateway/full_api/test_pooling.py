"""The full API of a pooling model, between its helpers and its fleet."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from common.errors import BatonError, Code
from common.messages import Delta, Pooling, PriorityClass
from services.gateway.api.kinds import RequestSpec
from services.gateway.api.routes import POOLING_ROUTES, Route, check_task
from services.gateway.auth.caller import Caller
from services.gateway.full_api.pooling import IN_FLIGHT_MAX, PooledStream, PoolingApi
from services.gateway.full_api.port import (
    ApiRequest,
    CheckedBody,
    Checks,
    Origin,
    Recorded,
    RenderedPrompt,
)
from services.gateway.streams.answer import FailureListener, PushOutcome, TokenStream
from services.gateway.streams.journal import Journal

POOLING = Pooling(task="embed")


class Bench:
    """`prompts`: of the body that is checked."""

    def __init__(self, prompts: int = 2, **checked: object) -> None:
        rendered = [RenderedPrompt([n + 1, 7], pooling=POOLING) for n in range(prompts)]
        self.checked = msgspec.structs.replace(CheckedBody(body=b"{}", prompts=rendered), **checked)
        self.open: dict[str, tuple[RequestSpec, TokenStream, FailureListener]] = {}
        self.most = 0
        self.closed: list[str] = []
        self.written: Recorded = {}
        checks = Checks(self._grammar, self._body, self._answer)
        self.api = PoolingApi("m", checks, self._open, self._close)
        self.request = ApiRequest(Route.EMBEDDINGS, b"{}", Origin("r"))
        self.answer = asyncio.gather(self.api.answer(self.request))

    async def _grammar(self, *_: object) -> None:
        raise AssertionError("nothing is generated")

    async def _body(self, _: ApiRequest) -> CheckedBody:
        return self.checked

    async def _answer(self, _: ApiRequest, checked: CheckedBody, pooled: Recorded) -> bytes:
        assert checked is self.checked
        self.written = pooled
        return b"written"

    def _open(
        self, spec: RequestSpec, stream: TokenStream, listener: FailureListener, caller: Caller
    ) -> None:
        self.open[spec.request_id] = (spec, stream, listener)
        self.most = max(self.most, len(self.open))

    def _close(self, spec: RequestSpec, reason: str) -> None:
        self.closed.append(spec.request_id)

    async def settle(self) -> None:
        for _ in range(3 * IN_FLIGHT_MAX):
            await asyncio.sleep(0)

    def end(self, request_id: str) -> PushOutcome:
        _, stream, _ = self.open.pop(request_id)
        made = request_id.encode()
        return stream.push(Delta(request_id, 1, 0, [], "stop", pooled=made, cached_tokens=1))


async def test_each_prompt_is_a_request_and_the_answer_has_them_in_order() -> None:
    bench = Bench(3, cache_salt="s", priority=-1)
    await bench.settle()
    assert list(bench.open) == ["r", "r-1", "r-2"]
    for number, (spec, _, _) in enumerate(bench.open.values()):
        assert (spec.model, spec.pooling, spec.sampling.max_tokens) == ("m", POOLING, 0)
        assert (spec.prompt_ids, spec.cache_salt) == ([number + 1, 7], "s")
        assert spec.priority is PriorityClass.INTERACTIVE
    assert [bench.end(name) for name in ("r-2", "r")] == [PushOutcome.FINISHED] * 2
    await bench.settle()
    assert not bench.answer.done(), "it waits for all prompts"
    assert bench.end("r-1") is PushOutcome.FINISHED
    (reply,) = await bench.answer
    assert reply.body == b"written"
    decoded = [msgspec.msgpack.decode(bench.written[str(n)][0], type=Delta) for n in range(3)]
    assert [delta.pooled for delta in decoded] == [b"r", b"r-1", b"r-2"]
    assert (bench.request.usage.prompt, bench.request.usage.cached) == (6, 3)


async def test_other_work_has_its_turn_between_the_prompts_of_a_body() -> None:
    bench, turns = Bench(IN_FLIGHT_MAX), 0
    while len(bench.open) < IN_FLIGHT_MAX:
        before = len(bench.open)
        await asyncio.sleep(0)
        turns += 1
        assert len(bench.open) <= before + 1
    assert turns >= IN_FLIGHT_MAX
    bench.answer.cancel()


async def test_a_body_without_prompts_is_answered_by_its_check() -> None:
    bench = Bench(0, answer=b"tokens")
    (reply,) = await bench.answer
    assert reply.body == b"tokens"
    assert not bench.open


async def test_many_prompts_wait_their_turn() -> None:
    bench = Bench(IN_FLIGHT_MAX + 5)
    await bench.settle()
    assert len(bench.open) == IN_FLIGHT_MAX
    while not bench.answer.done():
        for name in list(bench.open):
            bench.end(name)
        await bench.settle()
    assert bench.most == IN_FLIGHT_MAX
    assert len(bench.written) == IN_FLIGHT_MAX + 5


async def test_the_first_failure_is_the_answer_and_the_rest_is_given_up() -> None:
    bench = Bench(3)
    await bench.settle()
    error = BatonError(Code.QUEUE_FULL, "too many")
    bench.open["r-1"][2].fail(error)
    with pytest.raises(BatonError) as failed:
        await bench.answer
    assert failed.value is error
    bench.api.end(bench.request, "it failed")
    assert bench.closed == ["r", "r-1", "r-2"]


def stream() -> PooledStream:
    request = ApiRequest(Route.EMBEDDINGS, b"", Origin("r"))
    return PooledStream(Journal([1], 0), request, lambda: None)


def test_only_the_current_attempt_counts_and_only_once() -> None:
    pooled = stream()
    assert pooled.push(Delta("r", 2, 0, [], "stop", pooled=b"x")) is PushOutcome.DROPPED
    pooled.journal.next_attempt()
    assert pooled.push(Delta("r", 1, 0, [], "stop", pooled=b"x")) is PushOutcome.DROPPED
    with pytest.raises(BatonError):
        pooled.recorded()
    assert pooled.push(Delta("r", 2, 0, [], "stop", pooled=b"x")) is PushOutcome.FINISHED
    assert pooled.push(Delta("r", 2, 0, [], "stop", pooled=b"y")) is PushOutcome.DROPPED
    assert b"x" in bytes(pooled.recorded())


def test_an_error_and_an_empty_end_are_told_apart() -> None:
    pooled = stream()
    assert pooled.push(Delta("r", 1, 0, [], error="draining", message="go")) is PushOutcome.ERROR
    assert pooled.error is not None
    assert (pooled.error.code, pooled.error.message) == (Code.DRAINING, "go")
    pooled = stream()
    assert pooled.push(Delta("r", 1, 0, [], "stop")) is PushOutcome.BROKEN
    assert pooled.error is not None
    assert pooled.error.code is Code.ENGINE_FAILED
    assert stream().push(Delta("r", 1, 0, [5], "stop", pooled=b"x")) is PushOutcome.BROKEN


@pytest.mark.parametrize("task", ["generate", *POOLING_ROUTES])
def test_a_route_of_another_task_is_refused_with_those_that_are_there(task: str) -> None:
    tokens = {Route.TOKENIZE, Route.DETOKENIZE}
    pooling = {route for routes in POOLING_ROUTES.values() for route in routes}
    served = set(POOLING_ROUTES.get(task, set(Route) - (pooling - tokens)))
    assert tokens < served
    for route in Route:
        if route in served:
            check_task("m", task, route)
            continue
        with pytest.raises(BatonError) as refused:
            check_task("m", task, route)
        error = refused.value
        assert (error.code, error.param, error.http.status) == (Code.INVALID_REQUEST, "model", 400)
        first = POOLING_ROUTES.get(task, (Route.CHAT,))[0]
        assert f"'m' (task {task!r})" in error.message
        assert first.value in error.message

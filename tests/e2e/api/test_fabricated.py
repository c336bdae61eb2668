"""vLLM's parsers and output processing over fabricated model output, through the path that real
tokens take: a call is opened, deltas come, an answer leaves. No engine; a token is a byte, and the
last one is the stop token, which is not shown."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from common.config import Config, from_mapping
from common.errors import BatonError, Code
from common.messages import Delta, Structured, StructureKind, TokenLogprobs
from common.model.byte_tokenizer import VOCAB_SIZE
from common.model.embedded import ensure_embedded_model
from services.gateway.api.kinds import RequestSpec
from services.gateway.api.routes import Route
from services.gateway.auth.caller import Caller
from services.gateway.full_api.port import (
    ApiRequest,
    CheckedBody,
    Checks,
    EventReply,
    FullApi,
    JsonReply,
    Origin,
    Recorded,
)
from services.gateway.full_api.vllm.build import build, build_helper
from services.gateway.streams.answer import FailureListener, PushOutcome, TokenStream, Usage
from tests.e2e.api.cases import HELLO, MODEL, TOOLS
from tests.e2e.api.compare import events, gathered

pytestmark = pytest.mark.timeout(300)

THINK_IDS = {"<think>": [VOCAB_SIZE], "</think>": [VOCAB_SIZE + 1]}
CONTEXT = 4096
READER_TURNS = 3
"""Of the loop, in which a reader takes what came; else vLLM joins deltas."""
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Römer €"}}\n</tool_call>'
SEVERAL = CALL + "\n" + CALL.replace("weather", "news")


class FakeFleet:
    """Gives every call the texts it was told, cut into deltas at `cuts`."""

    def __init__(self) -> None:
        self.closed: list[str] = []
        self.begin()

    def begin(self) -> None:
        """On each test's own loop."""
        self.opened: list[tuple[RequestSpec, TokenStream, FailureListener]] = []
        self.compiled: list[Structured] = []
        self.changed = asyncio.Event()

    def open(
        self, spec: RequestSpec, stream: TokenStream, listener: FailureListener, caller: Caller
    ) -> None:
        self.opened.append((spec, stream, listener))
        self.changed.set()

    async def compiles(self, structured: Structured, caller: Caller) -> None:
        """Everything does here but a regex."""
        self.compiled.append(structured)
        if structured.kind is StructureKind.REGEX:
            raise BatonError(Code.INVALID_REQUEST, "no regex today")

    def close(self, spec: RequestSpec, reason: str) -> None:
        self.closed.append(spec.request_id)


FLEET = FakeFleet()
WRITTEN: list[Route] = []
"""Routes of the answers that were written as a helper process would."""


@pytest.fixture(scope="module")
def api() -> FullApi:
    config = from_mapping({"model": {"tool_parser": "hermes"}})
    model: Path = ensure_embedded_model()
    return built(config, model)


@pytest.fixture(scope="module", params=["deepseek_r1", "qwen3"])
def thinking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FullApi:
    """As `api`, for a model that thinks: the embedded one's files with two more tokens."""
    model = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(ensure_embedded_model(), model)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in THINK_IDS])
    tokenizer.save(str(model / "tokenizer.json"))
    assert {text: [tokenizer.token_to_id(text)] for text in THINK_IDS} == THINK_IDS
    about = json.loads((model / "config.json").read_text())
    about["vocab_size"] = VOCAB_SIZE + len(THINK_IDS)
    (model / "config.json").write_text(json.dumps(about))
    settings = {"path": str(model), "name": MODEL, "tool_parser": "hermes"}
    config = from_mapping({"model": settings | {"reasoning_parser": request.param}})
    return built(config, model)


def built(config: Config, model: Path) -> FullApi:
    checker, writer = build_helper(config, model)

    async def check(asked: ApiRequest) -> CheckedBody:
        return await checker.check(asked.route, asked.body, CONTEXT, {})

    async def answer(asked: ApiRequest, checked: CheckedBody, deltas: Recorded) -> bytes:
        about = ApiRequest(asked.route, b"", Origin(asked.origin.request_id))
        WRITTEN.append(asked.route)
        return await writer.answer(about, checked, deltas)

    checks = Checks(FLEET.compiles, check, answer)
    made = build(config, model, "/model", checks, FLEET.open, FLEET.close)
    made.set_context(CONTEXT)
    return made


def api_request(route: Route = Route.CHAT, **fields: Any) -> ApiRequest:
    asked: dict[str, Any] = {"messages": HELLO, "max_tokens": 500}
    if route is Route.RESPONSES:
        asked = {"input": "hello"}
    body = {"model": MODEL} | asked | fields
    return ApiRequest(route, json.dumps(body).encode(), Origin("r"))


async def say(call_at: int, text: str, cuts: list[int], **last: Any) -> None:
    """The text of one opened call as deltas; its reader takes each by itself."""
    _, stream, _ = FLEET.opened[call_at]
    ids = ids_of(text)
    bounds = sorted({0, *(min(cut, len(ids)) for cut in cuts), len(ids)})
    for start, end in itertools.pairwise(bounds):
        final = {"finish_reason": "stop"} | last if end == len(ids) else {}
        stream.push(Delta("r", 1, start, ids[start:end], **final))
        for _ in range(READER_TURNS):
            await asyncio.sleep(0)


def ids_of(text: str) -> list[int]:
    """Bytes, and the two tokens that only a thinking model's tokenizer has."""
    parts = re.split("(</?think>)", text)
    return [id_ for part in parts for id_ in THINK_IDS.get(part) or part.encode()]


async def told(
    api: FullApi, about: ApiRequest, *texts: str, cuts: list[int], end: str = "stop"
) -> Any:
    """The whole answer, or the gathered stream, to what the calls say."""

    async def speak() -> None:
        await opened(len(texts))
        for at, text in enumerate(texts):
            await say(at, text, cuts, finish_reason=end)

    return await answered(api, about, speak)


async def answered(
    api: FullApi, about: ApiRequest, speak: Callable[[], Coroutine[Any, Any, None]]
) -> Any:
    """The whole answer, or the gathered stream, while the calls `speak`."""
    FLEET.begin()

    async def answer() -> Any:
        made = await api.answer(about)
        if isinstance(made, JsonReply):
            return json.loads(made.body)
        assert isinstance(made, EventReply)
        chunks = [chunk async for chunk in made.chunks]
        return gathered(events(b"".join(chunks).decode()))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(answer())
        await speak()
    api.end(about, "done")
    return task.result()


async def opened(count: int) -> None:
    while len(FLEET.opened) < count:
        FLEET.changed.clear()
        await FLEET.changed.wait()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


CUTS = st.lists(st.integers(1, 200), max_size=30)


@settings(max_examples=25)
@given(cuts=CUTS, stream=st.booleans())
def test_tool_calls_in_the_text_are_found_however_it_is_cut(
    api: FullApi, cuts: list[int], stream: bool
) -> None:
    about = api_request(tools=TOOLS, tool_choice="auto", stream=stream)
    choices = run(told(api, about, SEVERAL + "!", cuts=cuts))["choices"]
    choice = choices["0"] if stream else choices[0]
    message = choice["delta"] if stream else choice["message"]
    calls = message["tool_calls"]
    found = list(calls.values()) if stream else calls
    assert [call["function"]["name"] for call in found] == ["weather", "news"]
    for call in found:
        assert json.loads(call["function"]["arguments"]) == {"city": "Römer €"}
    assert choice["finish_reason"] == "tool_calls"


THOUGHT = "<think>Two and two, €?</think>It is 4."
FIRST = 1
"""A prefill makes one token, so the first delta has one; parsers rely on it."""


@settings(max_examples=15)
@given(cuts=CUTS, stream=st.booleans())
def test_reasoning_is_told_apart_from_content_however_it_is_cut(
    thinking: FullApi, cuts: list[int], stream: bool
) -> None:
    about = api_request(stream=stream)
    choices = run(told(thinking, about, THOUGHT + "!", cuts=[FIRST, *cuts]))["choices"]
    choice = choices["0"] if stream else choices[0]
    message = choice["delta"] if stream else choice["message"]
    assert (message["reasoning"], message["content"]) == ("Two and two, €?", "It is 4.")
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_left_out_when_not_wanted(thinking: FullApi, stream: bool) -> None:
    about = api_request(stream=stream, include_reasoning=False)
    choices = run(told(thinking, about, THOUGHT + "!", cuts=[FIRST, 9, 30]))["choices"]
    choice = choices["0"] if stream else choices[0]
    message = choice["delta"] if stream else choice["message"]
    assert not message.get("reasoning")
    assert message["content"] == "It is 4."


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_never_stops_thinking_has_said_nothing(
    thinking: FullApi, stream: bool
) -> None:
    async def body() -> Any:
        about = api_request(stream=stream)
        return await told(thinking, about, "<think>and so on", cuts=[FIRST, 8], end="length")

    choices = run(body())["choices"]
    choice = choices["0"] if stream else choices[0]
    message = choice["delta"] if stream else choice["message"]
    assert message["reasoning"] == "and so on"
    assert not message.get("content")
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_may_be_called_after_thinking(thinking: FullApi, stream: bool) -> None:
    about = api_request(stream=stream, tools=TOOLS, tool_choice="auto")
    text = f"<think>I must ask.</think>{CALL}!"
    choices = run(told(thinking, about, text, cuts=[FIRST, *range(0, 200, 7)]))["choices"]
    choice = choices["0"] if stream else choices[0]
    message = choice["delta"] if stream else choice["message"]
    (call,) = message["tool_calls"].values() if stream else message["tool_calls"]
    assert message["reasoning"] == "I must ask."
    assert json.loads(call["function"]["arguments"]) == {"city": "Römer €"}
    assert choice["finish_reason"] == "tool_calls"


def test_a_schema_waits_for_the_end_of_the_thinking(thinking: FullApi) -> None:
    """The worker is told that the text does not begin with what must match."""
    about = api_request(response_format={"type": "json_object"})
    run(told(thinking, about, "<think>hm</think>{}!", cuts=[9]))
    (spec, _, _) = FLEET.opened[0]
    assert spec.sampling.structured is not None
    assert spec.sampling.reasoning_ended is False


def test_reasoning_in_the_other_apis(thinking: FullApi) -> None:
    response = run(told(thinking, api_request(Route.RESPONSES), THOUGHT + "!", cuts=[]))
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"][0]["text"] == "Two and two, €?"
    assert response["output"][1]["content"][0]["text"] == "It is 4."
    message = run(told(thinking, api_request(Route.MESSAGES), THOUGHT + "!", cuts=[]))
    assert [part["type"] for part in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"] == "Two and two, €?"


@settings(max_examples=25)
@given(text=st.text("abé€😀 \n", min_size=1, max_size=30), cuts=CUTS, stream=st.booleans())
def test_any_text_arrives_however_it_is_cut(
    api: FullApi, text: str, cuts: list[int], stream: bool
) -> None:
    choices = run(told(api, api_request(user="u", stream=stream), text + "!", cuts=cuts))["choices"]
    choice = choices["0"] if stream else choices[0]
    said = (choice["delta"] if stream else choice["message"])["content"]
    assert said == text


def test_n_choices_are_calls_of_their_own(api: FullApi) -> None:
    about = api_request(n=2, temperature=1.0, seed=5)
    body = run(told(api, about, "one.", "two..", cuts=[2]))
    assert [choice["message"]["content"] for choice in body["choices"]] == ["one", "two."]
    specs = [spec for spec, _, _ in FLEET.opened]
    assert [spec.request_id for spec in specs] == ["r", "r-1"]
    assert [spec.sampling.seed for spec in specs] == [5, 6]
    assert body["usage"]["completion_tokens"] == 4 + 5
    assert body["usage"]["prompt_tokens"] == len(specs[0].prompt_ids)


def test_a_stop_string_ends_the_call_and_tells_the_worker(api: FullApi) -> None:
    async def body() -> Any:
        about = api_request(stop=["STOP"], logit_bias={"5": 1}, n=1, top_logprobs=0, logprobs=True)
        FLEET.begin()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            task = group.create_task(api.answer(about))
            await opened(1)
            _, stream, _ = FLEET.opened[0]
            ids = list(b"xSTOPyz")
            rows = [TokenLogprobs(1, [token], [-0.5]) for token in ids]
            assert stream.push(Delta("r", 1, 0, ids, logprobs=rows)) is PushOutcome.STOPPED
            assert stream.journal.emitted == ids[:5]
        return task.result()

    answer = run(body())
    assert isinstance(answer, JsonReply)
    choice = json.loads(answer.body)["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("x", "STOP")
    assert len(choice["logprobs"]["content"]) == 5


@pytest.mark.parametrize("attended", [True, False])
def test_each_generation_says_whether_a_client_reads_it(api: FullApi, attended: bool) -> None:
    async def body() -> list[bool]:
        about = api_request(n=2)
        about.is_attended = lambda: attended
        FLEET.begin()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            task = group.create_task(api.answer(about))
            await opened(2)
            said = [spec.attended for spec, _, _ in FLEET.opened]
            for at in range(2):
                await say(at, "x", [])
            await task
        return said

    assert run(body()) == [attended] * 2


@pytest.mark.parametrize(
    ("route", "fields", "answers"),
    [
        (Route.COMPLETION, {"prompt": ["x"] * 256, "n": 3}, 768),
        (Route.COMPLETION, {"prompt": ["x"] * 256, "n": "3"}, 768),
        (Route.COMPLETION, {"prompt": [[65]] * 5, "n": 128}, 640),
    ],
)
def test_one_request_opens_no_more_generations_than_the_limit(
    api: FullApi, route: Route, fields: dict[str, Any], answers: int
) -> None:
    FLEET.begin()
    with pytest.raises(BatonError) as refused:
        run(api.answer(api_request(route, **fields)))
    assert refused.value.code is Code.INVALID_REQUEST
    key = "gateway.limits.generations_max"
    assert refused.value.message == f"n: {answers} answers, at most 512 ({key})"
    assert FLEET.opened == []


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (Route.BATCH, {"messages": [HELLO] * 48}),
        (Route.COMPLETION, {"prompt": ["x"] * 48}),
    ],
)
def test_the_loop_comes_round_between_the_generations_of_a_request(
    api: FullApi, route: Route, fields: dict[str, Any]
) -> None:
    """Else a stream beside it would stand still until all are opened."""

    async def body() -> int:
        FLEET.begin()
        most = seen = 0
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            task = group.create_task(api.answer(api_request(route, **fields)))
            while len(FLEET.opened) < 48:
                await asyncio.sleep(0)
                most, seen = max(most, len(FLEET.opened) - seen), len(FLEET.opened)
            for at in range(48):
                await say(at, "x", [])
            await task
        return most

    assert run(body()) <= 2


FOUR = ["abcd", "efgh", "ijkl", "mnop"]
NEW = re.compile(r'"(id|created|created_at|completed_at)": ?("[^"]*"|[0-9.]+)')
"""Of each answer."""


async def with_logprobs(api: FullApi, about: ApiRequest, *texts: str) -> Any:
    """The answer to calls that have logprobs of each token, and of the prompt if asked for."""
    FLEET.begin()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        task = group.create_task(api.answer(about))
        await opened(len(texts))
        for at, text in enumerate(texts):
            spec, stream, _ = FLEET.opened[at]
            prompt = [row(token) for token in spec.prompt_ids[1:]]
            first: dict[str, Any] = {"cached_tokens": 1}
            if spec.sampling.prompt_logprobs is not None:
                first["prompt_logprobs"] = prompt
            ids = ids_of(text)
            stream.push(Delta("r", 1, 0, ids[:2], logprobs=[row(i) for i in ids[:2]], **first))
            last: dict[str, Any] = {
                "finish_reason": "length",
                "logprobs": [row(i) for i in ids[2:]],
            }
            stream.push(Delta("r", 1, 2, ids[2:], **last))
    api.end(about, "done")
    reply = task.result()
    assert isinstance(reply, JsonReply)
    return json.loads(reply.body)


def row(token: int) -> TokenLogprobs:
    return TokenLogprobs(2, [token, 65, 66], [-0.5, -0.25, -1.0])


@pytest.mark.parametrize(
    ("route", "fields", "texts"),
    [
        (Route.CHAT, {"logprobs": True, "top_logprobs": 2, "n": 2}, ["abcd", "efgh"]),
        (Route.CHAT, {"logprobs": True, "prompt_logprobs": 2, "echo": True}, ["abcd"]),
        (Route.COMPLETION, {"prompt": "xyz", "logprobs": 2, "echo": True}, ["abcd"]),
        (Route.COMPLETION, {"prompt": ["xyz", "vw"], "logprobs": 1, "n": 2}, FOUR),
        (Route.BATCH, {"messages": [HELLO, HELLO], "logprobs": True}, ["abcd", "efgh"]),
        (
            Route.RESPONSES,
            {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
            ["abcd"],
        ),
    ],
)
def test_an_answer_with_logprobs_is_the_same_wherever_it_is_written(
    api: FullApi,
    monkeypatch: pytest.MonkeyPatch,
    route: Route,
    fields: dict[str, Any],
    texts: list[str],
) -> None:
    def body(**answer: Any) -> Any:
        """Without what is new in each answer."""
        return NEW.sub("", json.dumps(answer))

    WRITTEN.clear()
    elsewhere = body(**run(with_logprobs(api, api_request(route, **fields), *texts)))
    assert [route] == WRITTEN
    WRITTEN.clear()
    monkeypatch.setattr("services.gateway.full_api.vllm.checking.LOGPROBS", ())
    here = body(**run(with_logprobs(api, api_request(route, **fields), *texts)))
    assert WRITTEN == []
    assert elsewhere == here
    assert "-0.5" in here or "-0.25" in here


def test_stale_and_missing_tokens(api: FullApi) -> None:
    async def body() -> None:
        about = api_request()
        FLEET.begin()
        task = asyncio.get_running_loop().create_task(api.answer(about))
        await opened(1)
        _, stream, listener = FLEET.opened[0]
        assert stream.push(Delta("r", 2, 0, [65])) is PushOutcome.DROPPED
        assert stream.push(Delta("r", 1, 0, [65])) is PushOutcome.RUNNING
        assert stream.push(Delta("r", 1, 0, [65])) is PushOutcome.DROPPED
        assert stream.push(Delta("r", 1, 5, [65])) is PushOutcome.BROKEN
        assert stream.error is not None
        listener.fail(stream.error)
        with pytest.raises(BatonError) as failed:
            await task
        assert failed.value.code is Code.STREAM_INTERRUPTED
        FLEET.closed.clear()
        api.end(about, "done")
        assert FLEET.closed == ["r"]

    run(body())


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_usage_has_what_was_computed_before_on_either_worker(
    api: FullApi, stream: bool, early: bool
) -> None:
    """In a stream vLLM reads the count at the first token; P's report is there before that."""
    about = api_request(stream=stream, stream_options=USAGE if stream else None)

    async def tokens() -> None:
        await opened(1)
        spec, taken, _ = FLEET.opened[0]
        size = len(spec.prompt_ids)
        if early or stream:
            taken.journal.take_prefill_count(size - 5)
        first = Delta("r", 1, 0, [65], cached_tokens=size - 1)
        taken.push(msgspec.structs.replace(first, handed_over_tokens=size - 3, stored_tokens=size))
        taken.journal.take_prefill_count(size - 5)
        taken.push(Delta("r", 1, 1, [66], finish_reason="length"))

    usage = run(answered(api, about, tokens))["usage"]
    size = usage["prompt_tokens"]
    details = usage["prompt_tokens_details"]
    assert (details["cached_tokens"], details["created_cache_tokens"]) == (size - 5, 5)
    assert about.usage == Usage(size, 2, size - 5, 5)


USAGE = {"include_usage": True}
UNCHECKED = {"type": "string", "pattern": "((((not checked here"}
NEEDS = {"type": "function", "function": {"name": "f", "parameters": UNCHECKED}}


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": UNCHECKED}},
        {"structured_outputs": {"grammar": "((((not checked here"}},
        {"tools": [NEEDS], "tool_choice": "required"},
        {"tools": [NEEDS], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
)
def test_what_the_text_must_match_is_compiled_elsewhere_and_not_by_vllm_on_the_loop(
    api: FullApi, fields: dict[str, Any]
) -> None:
    """vLLM's own check would refuse the first two."""
    run(told(api, api_request(**fields), "{}.", cuts=[]))
    (spec, _, _) = FLEET.opened[0]
    assert spec.sampling.structured is not None
    assert FLEET.compiled == [spec.sampling.structured]


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": [[], 1]},
        {"tools": [{"type": "function"}]},
        {"tool_choice": 7},
        {"response_format": {"type": "poem"}},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [7]},
        {"prompt_logprobs": -1},
        {"logprobs": True, "top_logprobs": -1},
        {"allowed_token_ids": [99_999]},
        {"thinking_token_budget": 5},
        {"stream": True, "prompt_logprobs": 1},
        {"n": 129},
        {"stop": ["s"] * 17, "n": 2},
        {"stop": "s" * 1025, "n": 2},
        {"structured_outputs": {"regex": "a"}},
        {"structured_outputs": {"regex": "a" * 16_385}},
        {"structured_outputs": {"choice": ["a"] * 1025}},
        {"structured_outputs": {"json": "[" * 81}},
        {"structured_outputs": {"grammar": "a" * (128 << 10) + "a"}},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_what_is_wrong_is_the_clients_fault_and_asks_no_engine(
    api: FullApi, fields: dict[str, Any]
) -> None:
    async def body() -> None:
        FLEET.begin()
        made = await api.answer(api_request(**fields))
        if isinstance(made, EventReply):
            async for _ in made.chunks:
                pass

    with pytest.raises(BatonError) as refused:
        run(body())
    assert refused.value.http.status == 400
    assert not FLEET.opened


def test_what_the_gateway_itself_reads_of_a_body_is_bounded(api: FullApi) -> None:
    """Beside the conversation. A field that nobody knows does not come so far."""
    long = "x" * (600 << 10)
    with pytest.raises(BatonError, match="fields_bytes_max"):
        run(api.answer(api_request(user=long)))
    about = api_request(mood=long, n=2)
    answer = run(told(api, about, "a!", "b!", cuts=[]))
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "b"]


def test_a_batch_has_one_choice_for_each_conversation(api: FullApi) -> None:
    about = api_request(Route.BATCH, messages=[HELLO, HELLO], store=True)
    answer = run(told(api, about, "first", "second", cuts=[], end="length"))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert texts == ["first", "second"]
    assert about.origin.ignored.header == "store"


def test_a_salt_and_hints_of_a_session_reach_the_fleet(api: FullApi) -> None:
    run(told(api, api_request(n=2, cache_salt="s", prompt_cache_key="k"), "a", "b", cuts=[]))
    assert [(spec.cache_salt, spec.session) for spec, _, _ in FLEET.opened] == [("s", "k")] * 2


def test_a_part_that_is_no_text_is_refused_with_its_reason(api: FullApi) -> None:
    part = {"type": "prompt_embeds", "data": "AAAA"}
    with pytest.raises(BatonError) as refused:
        run(api.answer(api_request(messages=[{"role": "user", "content": [part]}])))
    assert refused.value.http.status in {400, 501}
    assert "prompt_embeds" in refused.value.message or "prompt embeds" in refused.value.message

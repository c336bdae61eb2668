"""The `openai` client, streamed and not: every feature does what its name says. That the answers
are vLLM's is shown in `test_same_as_vllm.py`; here the client must make sense of them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.e2e.api.asks import TOKENS, Asks
from tests.e2e.api.cases import HELLO, MODEL, TALK, TOOLS
from tests.e2e.api.conftest import Stack

pytestmark = pytest.mark.timeout(600)

X = "120"
"""Token ids of the embedded model are bytes."""


def test_a_chat_and_its_usage(asks: Asks, stream: bool) -> None:
    told = asks.chat(user="someone", extra_body={"priority": 0})
    assert told.only.finish == "length"
    assert told.only.text
    usage = told.usage
    assert usage.completion_tokens == TOKENS
    assert usage.total_tokens == usage.prompt_tokens + TOKENS
    again = asks.chat(messages=TALK)
    assert again.usage.prompt_tokens != usage.prompt_tokens
    assert again.only.text != told.only.text
    if stream:
        assert told.chunks > TOKENS / 2, "it was streamed"


def test_a_stream_tells_its_usage_only_when_asked(client: openai.OpenAI) -> None:
    about: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 4, "stream": True}
    chunks = list(client.chat.completions.create(**about))
    assert all(chunk.usage is None for chunk in chunks)
    chunks = list(client.chat.completions.create(**about, stream_options={"include_usage": True}))
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert len({chunk.id for chunk in chunks}) == 1


def test_max_completion_tokens(asks: Asks) -> None:
    told = asks.chat(max_completion_tokens=5, max_tokens=openai.omit)
    assert told.usage.completion_tokens == 5
    assert told.only.finish == "length"


def test_n(asks: Asks) -> None:
    told = asks.chat(n=3, temperature=1.0, seed=5)
    assert sorted(told.choices) == [0, 1, 2]
    assert len({choice.text for choice in told.choices.values()}) == 3
    assert {choice.finish for choice in told.choices.values()} == {"length"}
    assert told.usage.completion_tokens == 3 * TOKENS


def test_stop(asks: Asks) -> None:
    plain = asks.chat().only.text
    stop = plain[3:5]
    told = asks.chat(stop=[stop, "never said"])
    assert told.only.finish == "stop"
    assert told.only.text == plain[: plain.index(stop)]
    assert told.usage.completion_tokens < TOKENS


def test_min_tokens_and_ignore_eos(asks: Asks) -> None:
    """Biased so that the model wants to end at once."""
    ends = {"logit_bias": {"257": 100}}
    assert asks.chat(**ends).usage.completion_tokens == 1
    assert asks.chat(**ends, extra_body={"min_tokens": 4}).usage.completion_tokens == 5
    told = asks.chat(**ends, extra_body={"ignore_eos": True})
    assert (told.usage.completion_tokens, told.only.finish) == (TOKENS, "length")


def test_logprobs(asks: Asks) -> None:
    told = asks.chat(logprobs=True, top_logprobs=3)
    rows = told.only.logprobs
    assert len(rows) == told.usage.completion_tokens
    for row in rows:
        assert len(row.top_logprobs) == 3
        assert row.logprob == pytest.approx(max(each.logprob for each in row.top_logprobs))
    bare = asks.chat(logprobs=True).only.logprobs
    assert [row.token for row in bare] == [row.token for row in rows]
    assert asks.chat().only.logprobs == []


def test_seed(asks: Asks) -> None:
    warm: dict[str, Any] = {"temperature": 1.5, "max_tokens": 24}
    first = asks.chat(seed=1, **warm).only.text
    assert asks.chat(seed=1, **warm).only.text == first
    assert asks.chat(seed=2, **warm).only.text != first


def test_penalties(asks: Asks) -> None:
    """A bias makes the model repeat one token, until the penalties weigh more."""
    wants = {"logit_bias": {X: 8}, "max_tokens": 40}
    plain = asks.chat(**wants).only.text
    for name in ("frequency_penalty", "presence_penalty"):
        assert asks.chat(**wants, **{name: 2.0}).only.text.count("x") < plain.count("x")
    told = asks.chat(**wants, extra_body={"repetition_penalty": 2.0})
    assert told.only.text != plain


def test_logit_bias(asks: Asks) -> None:
    assert asks.chat(logit_bias={X: 100}).only.text == "x" * TOKENS


def test_tools_that_need_not_be_called(asks: Asks) -> None:
    for choice in ("none", "auto"):
        told = asks.chat(tools=TOOLS, tool_choice=choice)
        assert told.only.text
        assert not told.only.calls


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "baton"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def ask(client: openai.OpenAI, *, stream: bool, **fields: Any) -> None:
    about: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 2} | fields
    answer = client.chat.completions.create(**about, stream=stream)
    for _ in answer if stream else ():
        pass


def test_timings(client: openai.OpenAI, stream: bool) -> None:
    """On the plain path and on vLLM's. Where a token overtakes the placement, no time is left for
    the prompt."""
    about: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 4, "stream": stream}
    for further in ({}, {"n": 2}):
        asked: Any = about | further | {"extra_headers": {"x-timings": "1"}}
        answer = client.chat.completions.create(**asked)
        told: Any = (list(answer)[-1] if stream else answer).model_extra["timings"]
        assert told["predicted_n"] == 4 * asked.get("n", 1)
        seen = [told[f"{name}_ms"] for name in ("intake", "queue", "predicted")]
        assert all(phase > 0 for phase in seen)
        assert told["prompt_ms"] >= 0
        assert sum(seen) + told["prompt_ms"] == pytest.approx(told["total_ms"])


def test_a_wrong_key(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.AuthenticationError) as raised:
        ask(client.with_options(api_key="wrong"), stream=stream)
    assert raised.value.code == "invalid_api_key"


def test_a_wrong_request(client: openai.OpenAI, stream: bool) -> None:
    wrongs: list[tuple[str, Any]] = [
        ("temperature", 3),
        ("top_logprobs", 99),
        ("stop", ["s"] * 17),
        ("max_tokens", 100_000),
        ("n", 129),
    ]
    for name, value in wrongs:
        with pytest.raises(openai.BadRequestError) as raised:
            ask(client, stream=stream, **{name: value})
        assert raised.value.param == name, raised.value
        assert raised.value.response.headers["x-request-id"]


def test_a_field_that_is_not_supported_is_refused_by_name(
    client: openai.OpenAI, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, stream=stream, web_search_options={})
    assert raised.value.param == "web_search_options"
    assert raised.value.code == "unsupported_parameter"


def test_another_model(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        ask(client, stream=stream, model="other")
    assert raised.value.code == "model_not_found"


def test_more_than_a_key_may(stack: Stack, client: openai.OpenAI, stream: bool) -> None:
    """The other half of this test may have spent its one request."""

    def twice() -> None:
        for _ in range(2):
            ask(client.with_options(api_key=stack.rated), stream=stream)

    with pytest.raises(openai.RateLimitError) as raised:
        twice()
    assert raised.value.code == "rate_limited"
    assert 30 < int(raised.value.response.headers["retry-after"]) < 120

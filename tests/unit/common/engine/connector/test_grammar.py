"""Emitted tokens are given to a grammar once, when it is compiled, and before anyone sees it."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from common.engine.connector.grammar import replay_emitted
from common.engine.vllm.sampling import RESUME_KEY


class Grammar:
    def __init__(self, *, takes: bool = True) -> None:
        self.accepted: list[int] = []
        self._takes = takes

    def accept_tokens(self, _request_id: str, tokens: list[int]) -> bool:
        self.accepted += tokens
        return self._takes


def request(emitted: int | None, compiled: Future[Any]) -> Any:
    """As vLLM's, with what is looked at."""
    extra = None if emitted is None else {RESUME_KEY: {"emitted": emitted}}
    structured = SimpleNamespace(_grammar=compiled, grammar=compiled)
    return SimpleNamespace(
        request_id="r",
        prompt_token_ids=[1, 2, 3, 4],
        sampling_params=SimpleNamespace(extra_args=extra),
        structured_output_request=structured,
    )


def test_the_grammar_is_ready_only_after_the_tokens() -> None:
    compiled, grammar = Future[Any](), Grammar()
    asked = request(2, compiled)
    replay_emitted(asked)
    ready = asked.structured_output_request.grammar
    assert not ready.done()
    compiled.set_result(grammar)
    assert ready.result(0) is grammar
    assert grammar.accepted == [3, 4]


def test_one_that_is_compiled_already() -> None:
    compiled, grammar = Future[Any](), Grammar()
    compiled.set_result(grammar)
    asked = request(1, compiled)
    replay_emitted(asked)
    assert asked.structured_output_request.grammar.result(0) is grammar
    assert grammar.accepted == [4]


def test_a_grammar_that_refuses_the_tokens_fails_the_request() -> None:
    compiled: Future[Any] = Future()
    asked = request(1, compiled)
    replay_emitted(asked)
    compiled.set_result(Grammar(takes=False))
    with pytest.raises(ValueError, match="refuses"):
        asked.structured_output_request.grammar.result(0)


def test_what_did_not_compile_stays_so() -> None:
    compiled: Future[Any] = Future()
    asked = request(1, compiled)
    replay_emitted(asked)
    compiled.set_exception(RuntimeError("too deep"))
    with pytest.raises(RuntimeError, match="too deep"):
        asked.structured_output_request.grammar.result(0)


@pytest.mark.parametrize("emitted", [None, 0])
def test_a_first_attempt_is_left_alone(emitted: int | None) -> None:
    compiled: Future[Any] = Future()
    asked = request(emitted, compiled)
    replay_emitted(asked)
    assert asked.structured_output_request.grammar is compiled

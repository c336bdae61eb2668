"""A stream that is promised KV for a part of its tokens tells when it comes near, and gets more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.engine.port import Batch, Output
from common.messages import Abort, BudgetReached, FinishReason, GrantKv, Move
from common.net.wire import pack_ids
from common.worker.actions import AbortInEngine, Action, Dispatched, ToRouter
from services.decode.core import DecodeCore
from services.decode.grant_limit import GrantLimit
from tests.rigs import messages
from tests.rigs.messages import kv_done
from tests.unit.services.decode.test_decode_core import BODY


def body(prompt: int, out: int) -> Any:
    sampling = msgspec.structs.replace(BODY.sampling, max_tokens=out)
    return msgspec.structs.replace(
        BODY, prompt_ids=pack_ids(list(range(prompt))), sampling=sampling
    )


class Bench:
    """`r` may make 200 tokens, in blocks of 16."""

    def __init__(
        self, kv_tokens_max: int = 400, prompt: int = 20, step_tokens: int = 1, **order: Any
    ) -> None:
        limit = GrantLimit(4, kv_tokens_max, 16)
        self.core = DecodeCore("d0", "i", limit, step_tokens=step_tokens)
        self(Dispatched(messages.decode("r", **order), body(prompt, 200)))

    def __call__(self, event: object) -> list[Action]:
        actions = self.core.handle(event, 0.0)  # type: ignore[arg-type]
        self.core.check_invariants()
        return actions

    def make(self, tokens: int, finish: str = "") -> list[int]:
        """It makes so many, one a step; what routers were told each time."""
        told: list[int] = []
        for n in range(tokens):
            told += self.step(1, finish if n == tokens - 1 else "")
        return told

    def step(self, tokens: int, finish: str = "") -> list[int]:
        actions = self(Batch(outputs=[Output("r#1", [7] * tokens, finish)]))
        sent = [a.message for a in actions if isinstance(a, ToRouter)]
        return [m.tokens for m in sent if isinstance(m, BudgetReached)]

    def grant(self, kv_tokens: int, near: int, attempt: int = 1) -> list[Action]:
        order = GrantKv(request_id="r", attempt=attempt, kv_tokens=kv_tokens, kv_tokens_near=near)
        return self(order)

    @property
    def promised(self) -> int:
        return self.core._promised


def test_routers_are_told_near_the_end_at_the_end_and_with_each_block_beyond() -> None:
    bench = Bench(kv_tokens=64, kv_tokens_near=52)
    assert bench.promised == 64
    assert bench.make(100) == [52, 64, 80, 96, 112]


def test_a_burst_that_passes_several_of_these_points_tells_once() -> None:
    bench = Bench(kv_tokens=64, kv_tokens_near=52)
    told = [bench.step(size) for size in (30, 1, 16, 14, 1, 5)]
    assert told == [[], [52], [68], [], [], [88]]


def test_it_is_told_a_step_ahead_because_the_engine_makes_one_while_routers_answer() -> None:
    bench = Bench(step_tokens=4, kv_tokens=64, kv_tokens_near=52)
    told = [bench.step(size) for size in (27, 1, 4, 4, 3, 1, 4, 4, 4, 4)]
    assert told == [[], [52], [], [], [], [64], [], [], [], [80]]


@pytest.mark.parametrize("step_tokens", [1, 2, 4, 15, 16])
def test_a_stream_that_leaves_after_its_next_step_is_less_than_a_step_past_its_promise(
    step_tokens: int,
) -> None:
    """Whatever it makes before, if it had more than a block to grow when it began."""
    most = 0
    for prompt in range(10, 64 - 16):
        for first in range(1, step_tokens + 1):
            bench = Bench(prompt=prompt, step_tokens=step_tokens, kv_tokens=64, kv_tokens_near=52)
            tokens, told = prompt + first, bench.step(first)
            while max(told, default=0) < 64:
                tokens, told = tokens + step_tokens, bench.step(step_tokens)
            most = max(most, tokens + step_tokens)
    assert most == 64 + step_tokens - 1


def test_a_stream_that_is_promised_all_says_nothing() -> None:
    bench = Bench()
    assert bench.promised == 224
    assert bench.make(150) == []


def test_a_prompt_that_is_near_already_is_told_with_the_first_token() -> None:
    assert Bench(kv_tokens=64, kv_tokens_near=10).make(44) == [22, 64]


def test_a_new_promise_is_counted_and_told_of_again() -> None:
    bench = Bench(kv_tokens=64, kv_tokens_near=52)
    assert bench.make(33) == [52]
    assert bench.grant(128, 116) == []
    assert bench.promised == 128
    assert bench.make(75) == [116, 128]
    held = bench.core.held_attempt("r", 1)
    assert held is not None
    assert held.kv_tokens == 128


def test_all_may_be_promised() -> None:
    bench = Bench(kv_tokens=64, kv_tokens_near=52)
    bench.grant(0, 0)
    assert bench.promised == 224
    assert bench.make(150) == []


def test_what_is_not_there_is_not_taken_over_and_asked_for_again() -> None:
    bench = Bench(kv_tokens_max=100, kv_tokens=64, kv_tokens_near=52)
    bench.grant(128, 116)
    assert (bench.promised, bench.core.dropped) == (64, 1)
    assert bench.make(60) == [52, 64, 80]


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_grant_for_another_attempt_is_dropped(attempt: int) -> None:
    bench = Bench(kv_tokens=64, kv_tokens_near=52)
    bench.grant(128, 116, attempt)
    assert (bench.promised, bench.core.dropped) == (64, 1)


def test_the_last_token_is_no_reason_to_ask() -> None:
    bench = Bench(kv_tokens=64, kv_tokens_near=52)
    assert bench.make(31, FinishReason.LENGTH) == []
    assert bench.promised == 0


def test_a_repeated_grant_changes_nothing() -> None:
    bench = Bench(kv_tokens=64, kv_tokens_near=52)
    bench.grant(128, 116)
    bench.grant(128, 116)
    assert bench.promised == 128
    assert bench.make(110) == [116, 128]


def test_what_is_kept_of_a_stream_is_let_go_when_nobody_takes_it() -> None:
    bench = Bench()
    bench.make(3)
    bench(Move(request_id="r", attempt=1, reason="parked"))
    bench(Batch(left=["r#1"]))
    assert bench.core.active == 1
    abort = Abort(request_id="r", attempt=1, reason="no worker had room in time")
    assert bench(abort) == [AbortInEngine("r", 1)]
    bench(Batch(kv_done=[kv_done("r", 1, side="send", error="cancelled")]))
    assert bench.core.active == 0
    assert bench(abort) == []

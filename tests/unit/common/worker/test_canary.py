"""The canary in a worker's engine: beside its core, bounded, and given up in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from common.clock import SystemClock
from common.engine.port import Batch, Output
from common.messages import Load, Pooling
from common.worker.actions import AbortInEngine, AddToEngine
from common.worker.canary import CANARY_ID, PROMPT, SAMPLING, Canary, marks_of
from tests.rigs.engines import PlayedEngine

FIRST = f"{CANARY_ID}#1"


class Bench:
    def __init__(self, load: Load = Load()) -> None:  # noqa: B008 - it is frozen
        self.engine = PlayedEngine(load, seqs=4)
        self.orders: asyncio.Queue[AddToEngine | AbortInEngine] = asyncio.Queue()
        self.canary = Canary(self.engine, self.orders.put_nowait, SystemClock())

    async def add(self) -> AddToEngine:
        """What the engine was given."""
        order = await asyncio.wait_for(self.orders.get(), 5)
        assert isinstance(order, AddToEngine)
        return order


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_its_tokens_are_sifted_out_of_what_the_core_sees(bench: Bench) -> None:
    running = asyncio.gather(bench.canary.run(5.0))
    request = (await bench.add()).request
    assert (request.prompt_ids, request.sampling, request.ticket) == (PROMPT, SAMPLING, None)
    assert len(PROMPT) < 16, "no whole block: nothing of it stays in a prefix cache"
    others = [Output("r#1", [1]), Output("r#2", [2], "length")]
    mixed = Batch(outputs=[others[0], Output(FIRST, [7, 8]), others[1]], load=Load(running=3))
    assert bench.canary.batch_without_own(mixed) == Batch(outputs=others, load=Load(running=3))
    assert (
        bench.canary.batch_without_own(Batch(outputs=[Output(FIRST, [9], "length")])).outputs == []
    )
    (answer,) = await running
    assert (answer.outcome, answer.tokens, answer.fingerprint) == ("answered", (7, 8, 9), "f")
    assert answer.alone
    untouched = Batch(outputs=[Output(FIRST, [9])])
    assert bench.canary.batch_without_own(untouched) is untouched, "none is under way"


async def test_one_that_gets_no_token_is_aborted_and_says_so(bench: Bench) -> None:
    answer = await bench.canary.run(0.02)
    assert (answer.outcome, answer.sentence) == ("failed", "no token within 0.02 s")
    await bench.add()
    assert bench.orders.get_nowait() == AbortInEngine(CANARY_ID, 1)


async def test_one_that_is_cut_short_is_aborted_and_says_how_far_it_came(bench: Bench) -> None:
    running = asyncio.gather(bench.canary.run(0.5))
    await bench.add()
    bench.canary.batch_without_own(Batch(outputs=[Output(FIRST, [7, 8])]))
    (answer,) = await running
    assert (answer.outcome, answer.sentence) == ("failed", "2 of 8 tokens within 0.5 s")
    assert bench.orders.get_nowait() == AbortInEngine(CANARY_ID, 1)


async def test_a_flight_that_nobody_waits_for_is_aborted(bench: Bench) -> None:
    running = asyncio.gather(bench.canary.run(60.0))
    await bench.add()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert bench.orders.get_nowait() == AbortInEngine(CANARY_ID, 1)
    again = asyncio.gather(bench.canary.run(60.0))
    assert (await bench.add()).request.attempt == 2
    again.cancel()


async def test_there_is_one_at_a_time(bench: Bench) -> None:
    running = asyncio.gather(bench.canary.run(60.0))
    await bench.add()
    other = await bench.canary.run(60.0)
    assert (other.outcome, other.sentence) == ("skipped", "another canary is under way")
    running.cancel()


@pytest.mark.parametrize(
    ("load", "sentence"),
    [
        (Load(running=2), "2 requests run and 0 wait in its engine"),
        (Load(running=1, waiting=1), "1 requests run and 1 wait in its engine"),
    ],
)
async def test_a_loaded_engine_is_left_in_peace(load: Load, sentence: str) -> None:
    bench = Bench(load)
    answer = await bench.canary.run(60.0)
    assert (answer.outcome, answer.sentence) == ("skipped", sentence)
    assert bench.orders.empty()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (0, 2)])
async def test_tokens_from_a_batch_are_marked_as_such(before: int, after: int) -> None:
    bench = Bench(Load(running=before))
    running = asyncio.gather(bench.canary.run(5.0))
    await bench.add()
    bench.engine.now = Load(running=after)
    bench.canary.batch_without_own(Batch(outputs=[Output(FIRST, [9], "length")]))
    (answer,) = await running
    assert not answer.alone


async def test_an_engine_that_fails_it_is_told_with_its_reason(bench: Bench) -> None:
    running = asyncio.gather(bench.canary.run(5.0))
    await bench.add()
    assert not bench.canary.on_refused("r", "not ours")
    assert bench.canary.on_refused(CANARY_ID, "the prompt is too long")
    (answer,) = await running
    assert (answer.outcome, answer.sentence) == (
        "failed",
        "the engine refused it: the prompt is too long",
    )
    running = asyncio.gather(bench.canary.run(5.0))
    await bench.add()
    gave_up = Output(f"{CANARY_ID}#2", [], error="engine_failed", message="it gave up")
    bench.canary.batch_without_own(Batch(outputs=[gave_up]))
    (answer,) = await running
    assert (answer.outcome, answer.sentence) == ("failed", "it gave up")


async def test_nobody_takes_it_for_work(bench: Bench) -> None:
    busy = Load(running=1, kv_used=0.125, step_age_ms=4.0, step_ms_p99=2.0)
    assert bench.canary.load_without_own(busy, empty=True) is busy
    running = asyncio.gather(bench.canary.run(60.0))
    await bench.add()
    assert bench.canary.load_without_own(busy, empty=True) == Load(step_age_ms=4.0, step_ms_p99=2.0)
    assert bench.canary.load_without_own(Load(waiting=1), empty=True) == Load()
    both = Load(running=2, waiting=1, kv_used=0.25)
    assert bench.canary.load_without_own(both, empty=False) == Load(
        running=1, waiting=1, kv_used=0.25
    )
    running.cancel()


async def test_an_engine_that_is_silent_while_it_has_the_canary_says_so_in_every_beat() -> None:
    bench = Bench()
    running = asyncio.gather(bench.canary.run(60.0))
    await bench.add()
    silent = Load(running=1, kv_used=0.125, step_age_ms=4_000.0, silent_ms=3_000.0)
    reported = bench.canary.load_without_own(silent, empty=True)
    assert reported == Load(step_age_ms=4_000.0, silent_ms=3_000.0)
    running.cancel()


async def test_a_pooling_engine_is_asked_for_what_it_makes(bench: Bench) -> None:
    pooling = Pooling(task="embed")
    bench.engine.info = replace(bench.engine.info, pooling=pooling)
    running = asyncio.gather(bench.canary.run(5.0))
    request = (await bench.add()).request
    assert (request.pooling, request.sampling.max_tokens) == (pooling, 0)
    numbers = np.array([0.1, 0.9, np.nan, 0.2], "<f4").tobytes()
    bench.canary.batch_without_own(Batch(outputs=[Output(FIRST, [], "stop", pooled=numbers)]))
    (answer,) = await running
    assert answer.outcome == "answered"
    assert (answer.tokens[0], answer.tokens[2]) == (4, 1), "numbers, and those that are none"
    healthy = marks_of(np.array([0.1, 0.9, 0.3], "<f4").tobytes())
    assert healthy == [3, 1, 0]

"""Prompts that begin before their decode worker has a slot, on real daemons."""

from __future__ import annotations

import asyncio
import itertools

import openai

from tests.rigs.fleet import Fleet, fleet

MODEL = "baton-tiny"
SLOTS, IN_FLIGHT, REQUESTS = 4, 8, 40
OUT = 24
ENV = {
    "BATON_ENGINE__MAX_NUM_SEQS": str(SLOTS),
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "600",
    "BATON_ROUTER__REMOTE_PREFILL": "always",
}
"""A prompt of 200 tokens takes a third of a second, as long as its answer; D has a quarter of its
slots, one, ahead."""


async def answers(running: Fleet) -> list[str]:
    """Ids of requests that were answered whole, some of which always wait for a slot."""
    numbers = iter(range(REQUESTS))
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as api:

        async def ask_on() -> list[str]:
            ids = []
            for number in numbers:
                prompt = " ".join(map(str, range(number, number + 60)))
                answer = await api.completions.create(model=MODEL, prompt=prompt, max_tokens=OUT)
                assert answer.usage is not None
                assert answer.usage.completion_tokens == OUT
                ids.append(answer.id)
            return ids

        return list(itertools.chain(*await asyncio.gather(*[ask_on() for _ in range(IN_FLIGHT)])))


def test_a_prompt_is_computed_while_its_slot_is_still_taken() -> None:
    with fleet("--engine", "sim", "--prefill", "4", "--decode", "1", env=ENV) as running:
        running.wait_ready()
        ids = asyncio.run(answers(running))
        status = running.ctl("status")
        totals = status["totals"]
        assert (totals["ended"], totals["failed"], status["refused"]) == (REQUESTS, 0, {})
        begun = [
            told
            for told in (running.ctl("explain", one)["attempts"] for one in ids)
            if any("begins ahead of its slot" in sentence for sentence in told[0]["sentences"])
        ]
        assert len(begun) == totals["placed_ahead"] > 0
        assert all(len(attempts) == 1 and attempts[0]["kv"]["complete"] for attempts in begun)
        (worker,) = (row for row in running.ctl("workers") if row["name"] == "d0")
        assert worker["requests"] == 0

"""`baton up --mode`: real daemons with simulated engines, nobody paired; and a policy set live."""

from __future__ import annotations

import openai
import pytest

from tests.rigs.fleet import fleet


@pytest.mark.parametrize(("mode", "workers"), [("replicated", 2), ("single", 1)])
def test_every_worker_computes_its_own_prompts(mode: str, workers: int) -> None:
    with fleet("--engine", "sim", "--mode", mode, "--decode", str(workers)) as running:
        running.wait_ready()
        assert running.ctl("status")["mode"] == mode
        assert running.ctl("policy", "round_robin")["policy"] == "round_robin"
        api = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        used = set()
        for _ in range(4):
            answer = api.completions.create(model="baton-tiny", prompt=[7] * 400, max_tokens=4)
            told = running.ctl("explain", answer.id)["attempts"][0]
            assert (told["policy"], told["prefill"]) == ("round_robin", "")
            assert f"mode is {mode}" in " ".join(told["sentences"])
            used.add(told["decode"])
        assert len(used) == workers

"""Two models of different weights in one fleet on real vLLM answer as plain engines do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from common.model.embedded import ensure_embedded_model
from common.model.weights import Recipe
from tests.e2e.reference import plain_answers
from tests.rigs.fleet import Fleet, fleet

pytestmark = pytest.mark.timeout(600)

SEEDS = {"eighteen": 18, "forty": 40}
PROMPTS = [[(7 * i + n) % 240 + 1 for i in range(200 + 90 * n)] for n in range(3)]
MAX_TOKENS = 12
SETTINGS = {"BATON_ENGINE__KV_CACHE_MIB": "256"} | {
    f"BATON_MODELS__{name.upper()}__DTYPE": "float32" for name in SEEDS
}
"""vLLM takes a model in float32 as bfloat16 unless told; the plain engine computes in float32."""


def answer(running: Fleet, model: str, prompt: list[int]) -> list[int]:
    body = {"model": model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    options = {"return_token_ids": True, "ignore_eos": True}
    told = httpx.post(f"{running.url}/v1/completions", json=body | options, timeout=120)
    assert told.status_code == 200, told.text
    tokens: list[int] = told.json()["choices"][0]["token_ids"]
    return tokens


def test_tokens_of_two_models_are_those_of_plain_engines(tmp_path: Path) -> None:
    folders = {
        name: ensure_embedded_model(tmp_path, Recipe(seed=seed)) for name, seed in SEEDS.items()
    }
    expected = {
        name: plain_answers(PROMPTS, MAX_TOKENS, model=folder) for name, folder in folders.items()
    }
    assert expected["eighteen"] != expected["forty"]
    flags = [f for name, path in folders.items() for f in ("--model", str(path), "--name", name)]
    asked = [(name, prompt) for prompt in PROMPTS for name in SEEDS]
    with fleet(*flags, env=SETTINGS) as running:
        running.wait_ready()
        with ThreadPoolExecutor(len(asked)) as clients:
            got = list(clients.map(lambda ask: answer(running, *ask), asked))
        for (name, prompt), tokens in zip(asked, got, strict=True):
            assert tokens == expected[name][PROMPTS.index(prompt)], name
        rows = running.ctl("workers")
        prints = {row["model"]: row["fingerprint"] for row in rows}
        assert len(set(prints.values())) == 2
        assert all(row["fingerprint"] == prints[row["model"]] for row in rows)
        assert not any(row["unlike"] for row in rows)
        assert running.ctl("status")["totals"]["placed_local"] == 0

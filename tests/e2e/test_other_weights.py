"""A worker of another checkpoint under the same name, on real vLLM: it never gets a request, and is
named. A copy of the same checkpoint in another folder is one of the fleet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.model.embedded import ensure_embedded_model
from common.model.weights import Recipe
from tests.e2e.reference import plain_answers
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = pytest.mark.timeout(600)

PROMPTS = [[(13 * i + n) % 240 + 1 for i in range(300 + 90 * n)] for n in range(4)]
MAX_TOKENS = 8
SECONDS = 120.0
SETTINGS = {"BATON_ENGINE__KV_CACHE_MIB": "128", "BATON_MODEL__DTYPE": "float32"}


@contextmanager
def stranger(running: Fleet, role: str, name: str, model: Path) -> Iterator[subprocess.Popen[str]]:
    """A worker that is told another place of the model than the fleet."""
    text = (running.run_dir / "fleet.toml").read_text()
    lines = [
        f'path = "{model}"' if line.startswith("path = ") else line for line in text.split("\n")
    ]
    path = running.run_dir / f"{name}.toml"
    path.write_text("\n".join([*lines, f"[{role}.{name}]", ""]))
    path.chmod(0o600)
    command = [sys.executable, "-m", "services.cli", role, "--config", str(path), "--name", name]
    process = subprocess.Popen(
        command,
        env=os.environ | SETTINGS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def row(running: Fleet, name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = running.ctl("workers")
    return next((each for each in rows if each["name"] == name), {})


def is_ready(running: Fleet, name: str) -> bool:
    return row(running, name).get("state") == "ready"


def ask(running: Fleet, prompt: list[int]) -> tuple[list[int], set[str]]:
    """Its tokens, and the workers that had it."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    options = {"return_token_ids": True, "ignore_eos": True}
    told = httpx.post(f"{running.url}/v1/completions", json=body | options, timeout=120)
    assert told.status_code == 200, told.text
    attempts = running.ctl("explain", told.json()["id"])["attempts"]
    workers = {attempt[role] for attempt in attempts for role in ("prefill", "decode")}
    return told.json()["choices"][0]["token_ids"], workers


def test_other_weights_under_one_name_get_nothing_and_are_named(tmp_path: Path) -> None:
    model = ensure_embedded_model(tmp_path, Recipe(seed=18))
    other = ensure_embedded_model(tmp_path, Recipe(seed=40))
    copy = tmp_path / "renamed"
    shutil.copytree(model, copy)
    expected = plain_answers(PROMPTS, MAX_TOKENS, model=model)
    with fleet("--model", str(model), "--name", "tiny", env=SETTINGS) as running:
        running.wait_ready()
        with stranger(running, "decode", "d9", other) as refused:
            told, _ = refused.communicate(timeout=SECONDS)
        assert refused.returncode == 1
        assert "decode d9 has another model than d0: weights" in told
        assert row(running, "d9")["state"] == "refused"
        assert "another model than d0: weights" in running.told("workers")
        with (
            stranger(running, "prefill", "p9", other),
            stranger(running, "prefill", "p8", copy),
        ):
            for name in ("p9", "p8"):
                wait_until(f"{name} is here", partial(is_ready, running, name), SECONDS)
            assert row(running, "p9")["unlike"].startswith("unlike d0, weights ")
            assert row(running, "p8")["unlike"] == ""
            running.ctl("drain", "p0")
            got = [ask(running, prompt) for prompt in PROMPTS]
            assert [tokens for tokens, _ in got] == expected
            assert set().union(*(workers for _, workers in got)) <= {"p8", "d0", ""}
            assert any("p8" in workers for _, workers in got)

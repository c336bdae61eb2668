"""A worker of another model, of another revision, or of a renamed copy with other weights, on real
vLLM: it never gets a request, and is named. A copy of the same checkpoint in another folder is one
of the fleet."""

from __future__ import annotations

import os
import re
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
MODEL_ID = "some/tiny"
REVISION = "v2"
SETTINGS = {
    "BATON_ENGINE__KV_CACHE_MIB": "128",
    "BATON_MODEL__DTYPE": "float32",
    "HF_HUB_OFFLINE": "1",
}


def cached(hub: Path, folders: dict[str, Path]) -> dict[str, str]:
    """Makes a cache of Hugging Face's with the model in these revisions. The variable that says
    where it is."""
    repository = hub / f"models--{MODEL_ID.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    for number, (revision, folder) in enumerate(folders.items()):
        commit = f"{number}" * 40
        shutil.copytree(folder, repository / "snapshots" / commit)
        (repository / "refs" / revision).write_text(commit)
    return {"HF_HUB_CACHE": str(hub)}


@contextmanager
def stranger(
    running: Fleet, role: str, worker: str, env: dict[str, str], more: str = "", **model: object
) -> Iterator[subprocess.Popen[str]]:
    """A worker that is told another `path` or `name` of the model than the fleet. `more`: tables
    that its file has beside the fleet's."""
    text = (running.run_dir / "fleet.toml").read_text()
    for key, value in model.items():
        text, found = re.subn(rf"(?m)^{key} = .*$", f'{key} = "{value}"', text)
        assert found == 1
    path = running.run_dir / f"{worker}.toml"
    path.write_text("\n".join([text, f"[{role}.{worker}]", more, ""]))
    path.chmod(0o600)
    command = [sys.executable, "-m", "services.cli", role, "--config", str(path), "--name", worker]
    process = subprocess.Popen(
        command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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


def test_another_model_revision_or_copy_gets_nothing_and_is_named(tmp_path: Path) -> None:
    model = ensure_embedded_model(tmp_path, Recipe(seed=18))
    other = ensure_embedded_model(tmp_path, Recipe(seed=40))
    copy, renamed = tmp_path / "copy", tmp_path / "renamed"
    shutil.copytree(model, copy)
    shutil.copytree(other, renamed)
    env = SETTINGS | cached(tmp_path / "hub", {"main": model, REVISION: other})
    expected = plain_answers(PROMPTS, MAX_TOKENS, model=model)
    with fleet("--model", MODEL_ID, "--name", "tiny", env=env) as running:
        running.wait_ready()
        revision = f'[decode.d9.engine.args]\nrevision = "{REVISION}"'
        with (
            stranger(running, "decode", "d9", env, revision) as of_revision,
            stranger(running, "decode", "d8", env, name="nope") as of_model,
        ):
            strangers = {"d9": of_revision, "d8": of_model}
            told = {name: of.communicate(timeout=SECONDS)[0] for name, of in strangers.items()}
        assert (of_revision.returncode, of_model.returncode) == (1, 1)
        reasons = {
            "d9": "decode d9 has another model than d0: weights",
            "d8": "decode d8 serves the model 'nope'; this fleet's file has tiny",
        }
        for name, reason in reasons.items():
            assert reason in told[name]
            assert row(running, name)["state"] == "refused"
            assert reason in row(running, name)["reason"]
            assert reason.removeprefix(f"decode {name} ") in running.told("workers")
        with (
            stranger(running, "prefill", "p9", env, path=renamed),
            stranger(running, "prefill", "p8", env, path=copy),
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

"""A worker of other weights under the name of the fleet's model, on real vLLM: it never gets a
request, and is named. A copy of the same checkpoint in another folder is one of the fleet.

The fleet serves a revision out of a Hugging Face cache. Strangers of each role serve another
revision and a renamed copy in which one small tensor was changed; one serves a smaller model."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from common.model.embedded import ensure_embedded_model
from common.model.weights import Recipe
from tests.e2e.reference import plain_answers
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.strangers import strangers

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ID = "team/tiny"
PROMPTS = [[(13 * i + n) % 240 + 1 for i in range(200 + 70 * n)] for n in range(3)]
MAX_TOKENS = 8
SECONDS = 240.0
CHANGED = "model.layers.1.input_layernorm.weight"
SETTINGS = {
    "BATON_ENGINE__KV_CACHE_MIB": "32",
    "BATON_ENGINE__ARGS__ENFORCE_EAGER": "true",
    "BATON_MODEL__DTYPE": "float32",
    "BATON_MODEL__MAX_MODEL_LEN": "1024",
}
REFUSED = {"d-revision": "weights ", "d-changed": "weights ", "d-smaller": "config "}
UNLIKE = ("p-revision", "p-changed")
LIKE = "p-renamed"


def cached(home: Path, revisions: dict[str, Path]) -> None:
    """Writes what `hf download` leaves: a folder for each commit, with links to the files."""
    repository = home / "hub" / f"models--{ID.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    for number, (revision, folder) in enumerate(revisions.items(), 1):
        commit = f"{number}" * 40
        (repository / "refs" / revision).write_text(commit)
        (repository / "snapshots" / commit).mkdir(parents=True)
        for file in folder.iterdir():
            (repository / "snapshots" / commit / file.name).symlink_to(file)


def changed_copy(model: Path, to: Path) -> Path:
    """The same files but for one tensor, of a kilobyte in ten megabytes."""
    shutil.copytree(model, to)
    tensors = load_file(to / "model.safetensors")
    tensors[CHANGED] *= np.float32(2)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def fleet_file(running: Fleet, role: str, name: str, path: str, revision: str = "") -> str:
    """The fleet's own with another place of the model, and a worker that is not in the fleet's."""
    text = (running.run_dir / "fleet.toml").read_text()
    assert f'path = "{ID}"' in text
    lines = [text.replace(f'path = "{ID}"', f'path = "{path}"'), f"[{role}.{name}]"]
    if revision:
        lines += ["[model.args]", f'revision = "{revision}"']
    return "\n".join([*lines, ""])


def row(running: Fleet, name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = running.ctl("workers")
    return next((each for each in rows if each["name"] == name), {})


def has_state(running: Fleet, name: str, state: str) -> bool:
    return bool(row(running, name).get("state") == state)


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
    retrained = ensure_embedded_model(tmp_path, Recipe(seed=40))
    cached(tmp_path / "home", {"main": model, "v2": retrained})
    places: dict[str, tuple[str, ...]] = {
        "revision": (ID, "v2"),
        "changed": (str(changed_copy(model, tmp_path / "changed")),),
        "smaller": (str(ensure_embedded_model(tmp_path, Recipe(layers=2))),),
        "renamed": (str(shutil.copytree(model, tmp_path / "renamed")),),
    }
    env = SETTINGS | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    (tmp_path / "strangers").mkdir()
    with (
        ThreadPoolExecutor(1) as aside,
        strangers(tmp_path / "strangers", env) as others,
        fleet("--model", ID, "--name", "tiny", env=env) as running,
    ):
        plain = aside.submit(plain_answers, PROMPTS, MAX_TOKENS, model=model)
        running.wait_ready()
        expected = plain.result()
        roles = {"d": "decode", "p": "prefill"}
        names = [(roles[name[0]], name) for name in (*REFUSED, *UNLIKE, LIKE)]
        others.start({at: fleet_file(running, *at, *places[at[1][2:]]) for at in names})
        for name, differs in REFUSED.items():
            wait_until(f"{name} is refused", partial(has_state, running, name, "refused"), SECONDS)
            assert others.ended(name, SECONDS) == 1
            assert f"decode {name} has another model than d0: {differs}" in others.told(name)
        for name in (*UNLIKE, LIKE):
            wait_until(f"{name} is here", partial(has_state, running, name, "ready"), SECONDS)
        assert row(running, LIKE)["unlike"] == ""
        running.ctl("drain", "p0")
        got = [ask(running, prompt) for prompt in PROMPTS]
        assert [tokens for tokens, _ in got] == expected
        assert set().union(*(workers for _, workers in got)) <= {LIKE, "d0", ""}
        assert any(LIKE in workers for _, workers in got)
        told = running.told("workers")
        for name in UNLIKE:
            assert row(running, name)["state"] == "ready"
            assert row(running, name)["unlike"].startswith("unlike d0, ")
            assert "weights " in row(running, name)["unlike"]
        for name, differs in REFUSED.items():
            assert f"another model than d0: {differs}" in told, name

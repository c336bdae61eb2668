"""A fleet of real daemons that serves two models, with simulated engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.rigs.fleet import Fleet, fleet
from tests.rigs.processes import baton

NAMES = ("chat", "code")
FLAGS = [flag for name in NAMES for flag in ("--model", "baton-tiny", "--name", name)]
WORKERS = {"chat": ("p0", "d0"), "code": ("p1", "d1")}
LONG = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    with fleet("--engine", "sim", *FLAGS) as up:
        yield up.wait_ready()


def ask(running: Fleet, model: str, **more: Any) -> httpx.Response:
    body = {"model": model, "prompt": LONG, "max_tokens": 4, **more}
    return httpx.post(f"{running.url}/v1/completions", json=body, timeout=20)


@pytest.mark.parametrize("model", NAMES)
def test_a_request_runs_on_the_workers_of_its_model(running: Fleet, model: str) -> None:
    answer = ask(running, model)
    assert (answer.status_code, answer.json()["model"]) == (200, model)
    (attempt,) = running.ctl("explain", answer.json()["id"])["attempts"]
    assert (attempt["prefill"], attempt["decode"]) == WORKERS[model]


def test_a_long_body_is_prepared_for_its_model_by_a_helper(running: Fleet) -> None:
    answer = ask(running, "code", prompt="x" * 8_100, max_tokens=2)
    assert answer.status_code in (200, 400)
    answer = ask(running, "code", prompt="x " * 3_000, max_tokens=2, user="u" * 9_000)
    assert (answer.status_code, answer.json()["model"]) == (200, "code")


def test_what_operators_and_clients_are_shown_is_by_model(running: Fleet) -> None:
    listed = httpx.get(f"{running.url}/v1/models", timeout=10).json()["data"]
    assert [card["id"] for card in listed] == list(NAMES)
    told = {row["name"]: row["model"] for row in running.ctl("workers")}
    assert told == {name: model for model, names in WORKERS.items() for name in names}
    status = running.ctl("status")
    assert [(m["model"], m["decode_ready"]) for m in status["models"]] == [("chat", 1), ("code", 1)]
    assert "model chat" in running.told("status")


def test_an_unknown_model_is_refused_with_the_names(running: Fleet) -> None:
    answer = ask(running, "nope")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].endswith("this server serves 'chat', 'code'")


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_of_another_model_is_refused_and_named(running: Fleet, role: str) -> None:
    """Its own fleet file has the model, and the fleet's has not."""
    name, file = f"{role[0]}9", running.run_dir / f"{role}-9.toml"
    text = (running.run_dir / "fleet.toml").read_text()
    about = [f"[{role}.{name}]", 'model = "other"', "[models.other]", 'path = "baton-tiny"', ""]
    file.write_text("\n".join([text, *about]))
    file.chmod(0o600)
    done = baton(role, "--config", str(file), "--name", name)
    sentence = f"{role} {name} serves the model 'other'; this fleet's file has chat, code"
    assert done.returncode == 1
    assert sentence in done.stdout + done.stderr
    (row,) = [row for row in running.ctl("workers") if row["name"] == name]
    assert (row["state"], row["reason"]) == ("refused", sentence)
    assert sentence in running.told("workers")
    for model in NAMES:
        (attempt,) = running.ctl("explain", ask(running, model).json()["id"])["attempts"]
        assert (attempt["prefill"], attempt["decode"]) == WORKERS[model]


def test_a_lost_model_is_a_503_and_the_other_is_served(running: Fleet) -> None:
    """The last test of this fleet: `baton up` starts the worker again, but not at once."""
    running.ctl("drain", "d1")
    assert ask(running, "chat").status_code == 200
    assert ask(running, "code", prompt="hi").status_code == 503

"""A plan for each of several models by one command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from common.errors import ConfigError
from loadtest.capacity.profile import text
from loadtest.plan import by_model
from loadtest.plan.plan_command import main
from loadtest.plan.sizing import FleetShape
from tests.unit.loadtest.plan.test_plan import PROFILE

MODELS = """
[chat]
profile = "chat.toml"
rate = 2
[code]
profile = "code.toml"
rate = 1
price = 3.0
"""


def plan(folder: Path, models: str = MODELS, *more: str) -> int:
    slow = tuple((tokens, 3 * ms) for tokens, ms in PROFILE.prefill_curve)
    (folder / "chat.toml").write_text(text(PROFILE))
    (folder / "code.toml").write_text(text(replace(PROFILE, prefill_curve=slow)))
    (folder / "models.toml").write_text(models)
    load = ("--requests", "40", "--workers", "8", "--slo", "ttft=4000,itl=400", "--scale", "0.2")
    return main(["--models", str(folder / "models.toml"), *load, *more])


def test_each_model_is_planned_by_its_own_profile_and_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, MODELS, "--json", str(tmp_path / "plan.json")) == 0
    out = capsys.readouterr().out
    names = ("chat", "code")
    chat, code = (json.loads((tmp_path / f"plan-{name}.json").read_bytes()) for name in names)
    assert chat["taken"]["ttft_ms"]["p50"] < code["taken"]["ttft_ms"]["p50"]
    shapes = [FleetShape(*each["taken"]["shape"]) for each in (chat, code)]
    assert out.index("model chat") < out.index("at 2.") < out.index("model code")
    cost = shapes[0].workers + 3 * shapes[1].workers
    workers = sum(shape.workers for shape in shapes)
    assert f"Together {workers} workers, {cost:g} an hour: chat {shapes[0].name}, code" in out


def test_a_model_that_no_fleet_serves_fails_the_command_and_the_other_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hard = MODELS.replace("price = 3.0", 'slo = "ttft=1"')
    assert plan(tmp_path, hard) == 1
    out = capsys.readouterr().out
    assert "No fleet of up to 8 workers meets it" in out
    assert "Together" not in out


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ("", "must have a table for each of 1 to 64 models"),
        ("chat = 1", "chat must be a table, like \\[chat\\]"),
        ("[chat]\nrate = [1]", "chat.rate must be a string or a number"),
        ("[chat", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, models: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.toml"
    path.write_text(models)
    with pytest.raises(ConfigError, match=says):
        by_model.read(["--models", str(path)])
    assert plan(tmp_path, models) == 2
    assert "models.toml: " in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml: cannot be read"):
        by_model.read(["--models", str(tmp_path / "no.toml")])


def test_flags_of_all_come_first_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[chat]\nprofile = "p.toml"\nrate = 2\n')
    models, shared = by_model.read(["--rate", "9", "--models", str(path), "--model", "x"])
    assert models == {"chat": ["--profile", str(tmp_path / "p.toml"), "--rate", "2"]}
    assert shared == ["--rate", "9", "--model", "x"]
    assert by_model.read(["--rate", "9"]) == ({"": []}, ["--rate", "9"])

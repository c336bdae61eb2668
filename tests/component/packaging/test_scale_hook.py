"""The example hook: which commands it gives, with `systemctl` and `docker` that only note them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "scale_hook.py"
OUT = {"direction": "out", "role": "decode", "count": 2, "workers": ["d0", "d2"]}
IN = {"direction": "in", "role": "decode", "count": 1, "workers": ["d0"], "worker": "d3f2a"}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    for name in ("systemctl", "docker"):
        program = tmp_path / name
        listing = '[ "$6" = ps ] && { echo one; echo two; exit 0; }\n' if name == "docker" else ""
        program.write_text(f'#!/bin/sh\n{listing}echo "$0 $*" >> {tmp_path}/told\nexit 5\n')
        program.chmod(0o755)
    return tmp_path


def call(programs: Path, order: dict[str, Any], *words: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *words],
        input=json.dumps(order),
        text=True,
        capture_output=True,
        check=False,
        env={"PATH": f"{programs}:/usr/bin:/bin"},
    )
    told = programs / "told"
    lines = told.read_text().splitlines() if told.exists() else []
    return done.returncode, [line.removeprefix(f"{programs}/") for line in lines]


def test_units_of_spare_workers_are_started_and_the_named_one_stopped(programs: Path) -> None:
    status, told = call(programs, OUT, "systemd", "d1", "d2", "d3", "d4")
    assert told == ["systemctl start --no-block baton-decode@d1 baton-decode@d3"]
    assert status == 5, "that of the command"
    _, told = call(programs, IN, "systemd", "d1", "d2")
    assert told[1:] == ["systemctl stop --no-block baton-decode@d3f2a"]


def test_where_none_is_left_it_says_so(programs: Path) -> None:
    assert call(programs, OUT, "systemd", "d0", "d2") == (1, [])


def test_replicas_are_added_to_those_that_are_there(programs: Path) -> None:
    files = ("compose", "a.yaml", "b.yaml", "decode-more")
    _, told = call(programs, OUT, *files)
    scaled = "--no-recreate --scale decode-more=4 decode-more"
    assert told == [f"docker compose -f a.yaml -f b.yaml up --detach {scaled}"]
    _, told = call(programs, IN, *files)
    assert told[1:] == ["docker stop 3f2a"]


@pytest.mark.parametrize("words", [(), ("systemd",), ("other", "d1")])
def test_bad_words_are_refused(programs: Path, words: tuple[str, ...]) -> None:
    assert call(programs, OUT, *words) == (2, [])

"""A batch on a disk that fills while its lines run and its files are written.

The disk is a small one of its own, which only root can mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from tests.rigs.batches import (
    COMPLETIONS,
    client,
    entries,
    faults,
    ids_line,
    jsonl,
    over,
    started,
    until_done,
)
from tests.rigs.fleet import fleet, wait_until

pytestmark = pytest.mark.long

LINES, TOKENS = 400, 200
ANSWERED = ("baton_gateway_batch_lines_total", 'outcome="answered"')
"""How often a gateway wrote an answer of a line down."""
SIM = ("--engine", "sim", "--prefill", "1", "--decode", "1")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Of 8 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0750", "tmpfs", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def filled(disk: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = disk / "ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with suppress(OSError):
        while True:
            os.write(descriptor, bytes(4096))
    os.close(descriptor)
    return ballast


def test_lines_and_files_wait_for_room_and_nothing_is_lost(disk: Path) -> None:
    env = {
        "BATON_GATEWAY__JOBS__PATH": str(disk / "jobs"),
        "BATON_ENGINE__SIM__DECODE_STEP_MS": "5",
    }
    lines = [ids_line(number, [97 + number % 26] * 40, TOKENS) for number in range(LINES)]
    with fleet(*SIM, env=env) as running, client(running.wait_ready()) as api:
        batch = started(api, jsonl(lines), COMPLETIONS)
        until_done(api, batch.id, LINES // 4)
        ballast = filled(disk)
        wait_until("a line waits for room", lambda: "lines.delayed" in running.log("g0"), 60)
        filled(disk)
        with pytest.raises(openai.APIStatusError, match=r"room|cannot be used"):
            api.files.create(file=("in.jsonl", bytes(1 << 20)), purpose="batch")
        assert api.completions.create(**lines[0]["body"]).choices[0].text
        counts = api.batches.retrieve(batch.id).request_counts
        assert counts is not None
        assert counts.completed < LINES
        ballast.unlink()
        done = over(api, batch.id)
        assert done.request_counts.model_dump() == {
            "total": LINES,
            "completed": LINES,
            "failed": 0,
        }
        assert faults(lines, entries(api, done.output_file_id)) == {}
        wait_until("each line is counted", lambda: running.counted(*ANSWERED) >= LINES)
        assert running.counted(*ANSWERED) == LINES, "no line was computed again"

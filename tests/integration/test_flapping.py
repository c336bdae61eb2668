"""One of three decode workers keeps dying: the fleet goes on and says so; no request is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadtest.ports import free_port
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Load, faults_of

DEATHS = 6
FLAPPING_STATUS = 3
READY_LINE = "d2: decode d2 ready"


def kill_whenever_ready(running: Fleet) -> None:
    for death in range(1, DEATHS + 1):
        wait_until(
            f"start {death} of d2",
            lambda starts=death: sum(READY_LINE in line for line in running.lines) >= starts,  # type: ignore[misc]
            90,
        )
        running.children()["d2"].send_signal(signal.SIGKILL)


def told(running: Fleet) -> str:
    flapping: dict[str, str] = running.ctl("status")["flapping"]
    assert set(flapping) <= {"d2"}
    return flapping.get("d2", "")


def health(running: Fleet) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{running.health_port}/health") as answer:
        said: dict[str, Any] = json.load(answer)
    return said


@pytest.mark.timeout(300)
@pytest.mark.long
async def test_a_worker_that_is_killed_again_and_again_costs_no_request() -> None:
    with fleet("--engine", "sim", "--decode", "3") as running:
        await asyncio.to_thread(running.wait_ready)
        load = Load(running.url, rate=10.0)
        streams = asyncio.create_task(load.run())  # noqa: TID251 - a test's own
        try:
            await asyncio.to_thread(kill_whenever_ready, running)
        finally:
            load.stop()
        ended = await streams
        assert faults_of(ended) == []
        assert not any(answer.refused for answer in ended)
        assert len(ended) == load.started > 100
        sentence = f"died {DEATHS} times in a row; the last time it was killed by signal 9"
        await asyncio.to_thread(wait_until, "it is told", lambda: told(running) == sentence)
        await asyncio.to_thread(
            wait_until, "on the dashboard", lambda: f"d2 {sentence}" in health(running)["reasons"]
        )
        assert await asyncio.to_thread(running.stop) == FLAPPING_STATUS
        assert f"d2 {sentence}" in running.lines


@pytest.mark.timeout(180)
def test_a_worker_that_cannot_start_does_not_keep_the_others_from_serving(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        file = tmp_path / "fleet.toml"
        file.write_text(
            f'[fleet]\nrun_dir = "{tmp_path}/run"\n[engine]\nkind = "sim"\n'
            f"[gateway]\nport = {free_port()}\n[health]\nport = {free_port()}\n"
            f"[decode.d0]\n[decode.d1]\n[decode.d2.kv]\nport = {taken.getsockname()[1]}\n"
        )
        with fleet("--config", str(file)) as running:
            running.wait_ready()
            running.run_dir = tmp_path / "run"
            assert running.ctl("status")["decode_ready"] == 2
            wait_until("it is told", lambda: "exited with status 1" in told(running), 60)
            assert running.stop() == FLAPPING_STATUS


@pytest.mark.timeout(120)
def test_the_run_ends_when_no_decode_worker_was_ready_for_the_configured_time() -> None:
    with fleet("--engine", "sim", "--prefill", "0", env={"BATON_UP__GIVE_UP_S": "3"}) as running:
        running.wait_ready()
        began = time.monotonic()

        def ended() -> bool:
            with contextlib.suppress(psutil.Error):  # it has just ended
                for name, child in running.children().items():
                    if name == "d0":
                        child.kill()
            return running.process.poll() is not None

        wait_until("it gives up", ended, 60)
        assert running.process.returncode == 1
        assert time.monotonic() - began > 3
        running.wait_for_line(r"no decode has been ready for 3 s \(\[up\] give_up_s\)")
        died, started = _seconds_of(running, "was killed"), _seconds_of(running, "starting")
        assert len(started) > 2, "it was started again"
        assert started[-1] - died[0] < 3 + 0.2, "but not once more when the time was over"


def _seconds_of(running: Fleet, event: str) -> list[float]:
    """When `baton up` told this of d0, to 0.1 s, since it began."""
    pattern = re.compile(rf"\[ *([0-9.]+) s\] d0: {event}")
    return [float(said[1]) for said in map(pattern.match, running.lines) if said]

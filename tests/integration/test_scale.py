"""A router that has its workers started and stopped by a hook, with real daemons on simulated
engines: the router and a gateway are here, and all workers are the hook's."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import psutil
import pytest

from loadtest.ports import free_port
from tests.rigs.fleet import wait_until
from tests.rigs.processes import Processes, baton, processes

SECONDS = 30.0


class Elastic:
    """A fleet whose hook does `how` (`tests/rigs/scale_hook.py`)."""

    def __init__(self, made: Processes, how: str, settings: dict[str, str]) -> None:
        self.made, self.folder = made, made.folder
        self.port, self.file = free_port(), made.folder / "fleet.toml"
        self.calls = made.folder / "calls"
        self.calls.mkdir()
        words = [sys.executable, "-m", "tests.rigs.scale_hook", str(self.file), str(self.calls)]
        hook = shlex.join([*words, *([how] if how else [])])
        scale = {"mode": '"on"', "out": f"'{hook}'", "in": f"'{hook}'", "cooldown_ms": "100"}
        lines = [f"{key} = {value}" for key, value in (scale | settings).items()]
        self.file.write_text(
            "\n".join(
                [
                    "[fleet]",
                    f'run_dir = "{made.folder}"',
                    "[model]",
                    'path = "baton-tiny"',
                    "max_model_len = 1024",
                    "floor = 0",
                    "[engine]",
                    'kind = "sim"',
                    "[gateway]",
                    f"port = {self.port}",
                    "[router.scale]",
                    *lines,
                    "[decode.d0]",
                    "[decode.d1]",
                    "[decode.d2]",
                ]
            )
        )

    def start(self, role: str, name: str) -> None:
        self.made.start(name, role, "--config", str(self.file), "--name", name)

    def ask(self, seconds: float = 60.0) -> httpx.Response:
        body: dict[str, Any] = {"model": "baton-tiny", "prompt": "hello", "max_tokens": 8}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        return httpx.post(url, json=body, timeout=seconds)

    def ctl(self, *words: str) -> Any:
        done = baton("ctl", *words, "--json", "--run-dir", str(self.folder))
        return json.loads(done.stdout) if done.returncode == 0 else None

    def events(self) -> list[str]:
        told = self.ctl("events") or {"events": []}
        return [row["event"] for row in told["events"] if row["event"].startswith("scale.")]

    def called(self) -> list[dict[str, Any]]:
        """What the hook was told, in the order of the calls."""
        files = sorted(self.calls.glob("*.json"), key=lambda path: path.stat().st_mtime)
        return [json.loads(file.read_text()) for file in files]

    def ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/health").status_code == 200
        return False


@contextmanager
def elastic(how: str = "", **settings: str) -> Iterator[Elastic]:
    with processes() as made:
        fleet = Elastic(made, how, settings)
        try:
            fleet.start("router", "r0")
            fleet.start("gateway", "g0")
            wait_until("the gateway serves", fleet.ready, SECONDS)
            yield fleet
        except BaseException:
            for log in sorted(fleet.calls.glob("*.log")):
                print(f"--- {log.name}", log.read_text()[-2000:], sep="\n")
            raise
        finally:
            for file in fleet.calls.glob("*.pid"):
                with suppress(ProcessLookupError, psutil.NoSuchProcess):
                    for child in psutil.Process(int(file.read_text())).children(recursive=True):
                        child.kill()
                    os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.timeout(120)
def test_the_first_request_starts_a_worker_which_stops_when_nobody_asks() -> None:
    with elastic(idle_ms="1500") as fleet:
        assert fleet.ask().status_code == 200
        (out,) = fleet.called()
        assert (out["direction"], out["role"], out["count"]) == ("out", "decode", 1)
        assert (out["model"], out["workers"]) == ("baton-tiny", [])
        wait_until("d0 stops", lambda: len(fleet.called()) == 2, SECONDS)
        assert (fleet.called()[1]["direction"], fleet.called()[1]["worker"]) == ("in", "d0")
        wait_until("it left", lambda: fleet.events().count("scale.answered") == 2, SECONDS)
        assert fleet.ready()
        assert fleet.ask().status_code == 200
        assert [call["direction"] for call in fleet.called()[:3]] == ["out", "in", "out"]


@pytest.mark.timeout(120)
def test_a_router_that_dies_after_the_call_has_a_successor_that_waits_for_the_worker() -> None:
    with elastic() as fleet, ThreadPoolExecutor(1) as client:
        answer = client.submit(fleet.ask)
        wait_until("the hook is called", lambda: len(fleet.called()) == 1, SECONDS)
        fleet.made.running["r0"].kill()
        fleet.made.running["r0"].wait()
        fleet.start("router", "r0")
        assert answer.result(60).status_code == 200
        wait_until("the order is over", lambda: "scale.answered" in fleet.events(), SECONDS)
        assert "scale.adopted" in fleet.events()
        assert len(fleet.called()) == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("how", "heard"), [("fail", "exited with 3: there is no room"), ("hang", "was ended after")]
)
def test_a_hook_that_does_nothing_is_called_again_after_the_deadline(how: str, heard: str) -> None:
    with elastic(how, deadline_ms="3000", hook_ms="1000", backoff_ms="1000") as fleet:
        with pytest.raises(httpx.TimeoutException):
            fleet.ask(seconds=4.0)
        wait_until("the hook is called", lambda: len(fleet.called()) == 1, SECONDS)
        wait_until("the order has failed", lambda: "scale.failed" in fleet.events(), SECONDS)
        wait_until("the next is given", lambda: len(fleet.called()) == 2, SECONDS)
        told = fleet.ctl("events")["events"]
        assert any(heard in row["sentence"] for row in told if row["event"] == "scale.failed")
        (row,) = fleet.ctl("balance")
        assert row["scale_mode"] == "on"

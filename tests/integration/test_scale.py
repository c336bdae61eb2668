"""A router that has its workers started and stopped by a hook, with real daemons on simulated
engines: the router and a gateway are here, and all workers are the hook's."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
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

    def ask(self, max_tokens: int = 8) -> httpx.Response:
        body: dict[str, Any] = {"model": "baton-tiny", "prompt": "hello", "max_tokens": max_tokens}
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        return httpx.post(url, json=body, timeout=60)

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

"""The containers' own command lines and health checks, run here with simulated engines.

Only paths, ports and addresses differ, by the same environment variables that a user has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI

from loadtest.ports import free_port
from tests.rigs.fleet import wait_until
from tests.rigs.processes import BATON, Processes, processes

COMPOSE = Path(__file__).parents[2] / "compose"
FILES = {"compose.yaml": "fleet.toml", "compose.gpu.yaml": "fleet.gpu.toml"}
START_SECONDS = 60.0
ON_GPUS = {
    "BATON_KV__TRANSPORTS": "tcp,sm,self",
    "BATON_GATEWAY__TEXT": "light",
    "BATON_MODEL__PATH": "baton-tiny",
}
"""What there is no hardware for here, and no model."""


class Containers:
    """The services of a compose file as processes of this host. `names`: in an order in which each
    finds there what it depends on."""

    def __init__(self, made: Processes, file: str) -> None:
        self._made, folder = made, made.folder
        self.ports = {"8000": str(free_port()), "9400": str(free_port())}
        self._places = {
            "/etc/baton/fleet.toml": str(COMPOSE / FILES[file]),
            "/run/baton": str(folder / "run"),
        }
        self._services: dict[str, Any] = yaml.safe_load((COMPOSE / file).read_text())["services"]
        self.names = sorted(self._services, key=lambda name: len(self._needs(name)))
        self._environment = (ON_GPUS if "gpu" in file else {}) | {
            "BATON_FLEET__RUN_DIR": str(folder / "run"),
            "BATON_GATEWAY__HOST": "127.0.0.1",
            "BATON_GATEWAY__PORT": self.ports["8000"],
            "BATON_HEALTH__PORT": self.ports["9400"],
            "BATON_ENGINE__KIND": "sim",
        }
        fleet = tomllib.loads((COMPOSE / FILES[file]).read_text())
        for role in ("prefill", "decode", "pool"):
            for name in fleet.get(role, {}):
                self._environment[f"BATON_{role}__{name}__KV__HOST".upper()] = "127.0.0.1"

    def _needs(self, name: str) -> set[str]:
        """All that must run before this one, whatever profile it is in."""
        direct = self._services[name].get("depends_on", {})
        return set(direct).union(*(self._needs(needed) for needed in direct))

    def up(self, name: str) -> None:
        words = self._here(self._services[name]["command"])
        self._made.start(name, *words, env=self._environment)

    def healthy(self, name: str) -> bool:
        """Runs the container's own health check."""
        _, command, *words = self._here(self._services[name]["healthcheck"]["test"])
        program = {"baton": BATON, "python": (sys.executable,)}[command]
        env = os.environ | self._environment
        done = subprocess.run([*program, *words], env=env, capture_output=True, check=False)
        return done.returncode == 0

    def stop(self, name: str) -> None:
        process = self._made.running[name]
        process.terminate()
        assert process.wait(30) == 0, self._made.log(name)

    def _here(self, words: list[str]) -> list[str]:
        here = [self._places.get(word, word) for word in words]
        return [word.replace(":9400/", f":{self.ports['9400']}/") for word in here]


@pytest.fixture
def containers(request: pytest.FixtureRequest) -> Iterator[Containers]:
    with processes() as made:
        yield Containers(made, request.param)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("containers", FILES, indirect=True)
def test_the_commands_of_the_image_make_a_fleet(containers: Containers) -> None:
    for name in containers.names:
        containers.up(name)
        if name == "router":
            assert not containers.healthy("gateway"), "it can not serve yet"
    for name in containers.names:
        wait_until(f"{name} is healthy", partial(containers.healthy, name), START_SECONDS)
    client = OpenAI(base_url=f"http://127.0.0.1:{containers.ports['8000']}/v1", api_key="none")
    (model,) = client.models.list().data
    made = client.completions.create(model=model.id, prompt="x" * 300, max_tokens=4)
    assert made.usage is not None
    assert made.usage.completion_tokens == 4
    for name in reversed(containers.names):
        containers.stop(name)

"""A worker that beats and answers, but wrongly or never, is found by its canary and passed over."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from common.errors import BatonError
from common.net.admin_client import ask
from loadtest.ports import free_port
from tests.rigs.fleet import wait_until
from tests.rigs.processes import BATON, Processes, processes

FLEET = """\
[fleet]
run_dir = "{run_dir}"
[engine]
kind = "sim"
[gateway]
port = {port}
[health]
port = {health_port}
interval_ms = 200
canary_interval_s = 0.3
canary_ms_max = 700
[prefill.p0]
[decode.d0]
[decode.d1]
[decode.d2]
[decode.d2.engine.sim]
decode_step_ms = 600000
"""
DAEMONS = ("router r0", "prefill p0", "decode d0", "decode d1", "decode d2", "gateway g0",
           "health h0")  # fmt: skip
WRONG = (
    "import sys; import common.engine.sim.model as model; model.LETTERS = model.LETTERS[::-1]; "
    "from services.cli import main; sys.exit(main())"
)
"""Another text from the same prompt; everything else is as it should be."""


class Daemons:
    """d1's engine computes wrongly, d2's never comes to an end of a step."""

    def __init__(self, made: Processes) -> None:
        self.run_dir = folder = made.folder
        self.port, self.health_port = free_port(), free_port()
        file = folder / "fleet.toml"
        file.write_text(FLEET.format(run_dir=folder, port=self.port, health_port=self.health_port))
        for daemon in DAEMONS:
            role, name = daemon.split()
            program = (sys.executable, "-c", WRONG) if name == "d1" else BATON
            made.start(name, role, "--config", str(file), "--name", name, program=program)

    def ask(self, verb: str, **args: Any) -> Any:
        """Nothing while no router answers."""
        try:
            answer = asyncio.run(ask(f"ipc://{self.run_dir}/admin.sock", verb, args, seconds=2.0))
        except BatonError:
            return []
        return answer.result

    def workers(self) -> dict[str, Any]:
        return {row["name"]: row for row in self.ask("workers")}

    def verdicts(self) -> dict[str, str]:
        return {name: row["verdict"] for name, row in self.workers().items()}

    def reasons(self) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=10)
        connection.request("GET", "/health")
        reasons: list[str] = json.load(connection.getresponse())["reasons"]
        connection.close()
        return reasons


@pytest.fixture
def daemons() -> Iterator[Daemons]:
    with processes() as made:
        yield Daemons(made)


@pytest.mark.timeout(180)
def test_wrong_tokens_and_no_tokens_are_found_and_get_no_work(daemons: Daemons) -> None:
    expected = {"p0": "", "d0": "", "d1": "degraded", "d2": "down"}
    wait_until("the verdicts", lambda: daemons.verdicts() == expected, 90.0)
    workers = daemons.workers()
    assert {name: row["state"] for name, row in workers.items()} == {
        "p0": "ready", "d0": "ready", "d1": "ready", "d2": "down"
    }  # fmt: skip
    assert workers["d1"]["verdict_reason"] == "canary tokens of d1 differ from d0's"
    assert workers["d2"]["verdict_reason"] == "canary on d2: no token within 0.7 s"
    assert set(daemons.reasons()) >= {workers[name]["verdict_reason"] for name in ("d1", "d2")}
    client = OpenAI(base_url=f"http://127.0.0.1:{daemons.port}/v1", api_key="none")
    answers = [
        client.completions.create(model="baton-tiny", prompt=f"{number}", max_tokens=4)
        for number in range(6)
    ]
    placed = [daemons.ask("explain", id=answer.id)["attempts"][-1]["decode"] for answer in answers]
    assert placed == ["d0"] * len(answers)

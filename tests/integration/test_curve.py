"""A whole fleet over TCP with keys: it serves, and strangers do not reach it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import openai
import zmq

from common.messages import WIRE_VERSION, Hello, Role
from loadtest.ports import free_port
from tests.component.common.security.curve_rig import Hosts
from tests.rigs.fleet import fleet, wait_until


def test_a_fleet_over_tcp_serves_its_own_and_no_stranger(tmp_path: Path) -> None:
    Hosts(tmp_path, "node")
    control = f"tcp://127.0.0.1:{free_port()}"
    secured = {
        "BATON_ROUTER__CONTROL": control,
        "BATON_GATEWAY__STREAM_BIND": "tcp://127.0.0.1:0",
        "BATON_SECURITY__KEYS_DIR": str(tmp_path / "node"),
    }
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.linger = 0
    with fleet("--engine", "sim", env=secured) as running:
        running.wait_ready()
        api = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        answer = api.completions.create(model="baton-tiny", prompt=[7] * 400, max_tokens=8)
        told = running.ctl("explain", answer.id)["attempts"][0]
        assert (told["prefill"], told["decode"]) == ("p0", "d0")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8

        expected = {"handoffs_in": 1, "recomputes": 0, "links_refused": 0}

        def kv_counts() -> dict[str, int]:
            """Zeros until d0's KV plane has reported."""
            rows = running.ctl("kv")["workers"]
            (counts,) = (row["counts"] for row in rows if row["name"] == "d0")
            return {name: counts.get(name, 0) for name in expected}

        wait_until(
            "KV came from who proved the fleet's secret",
            lambda: kv_counts() == expected,
        )

        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.IDENTITY, b"d9|1")
        stranger.connect(control)
        hello = Hello(wire_version=WIRE_VERSION, role=Role.DECODE, name="d9", incarnation="1")
        stranger.send(msgspec.msgpack.encode(hello))
        wait_until(
            "the stranger is counted",
            lambda: any("peer refused" in why for why in running.ctl("status")["dropped"]),
        )
        assert {row["name"] for row in running.ctl("workers")} == {"p0", "d0"}
        assert running.ctl("status")["totals"]["submitted"] == 1
        assert running.stop() == 0
    context.destroy(linger=0)

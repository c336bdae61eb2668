"""`baton ctl kv` and the health daemon's metrics, while KV is held for another worker and after."""

from __future__ import annotations

import asyncio
import re
import urllib.request

import openai

from tests.rigs.fleet import Fleet, fleet, wait_until

PROMPT = "word " * 400
SLOW = {"BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "1000"}


def metric(running: Fleet, name: str, **labels: str) -> float | None:
    """Of the line that has these labels, whichever daemon tells it."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{running.health_port}/metrics", timeout=10
    ) as answer:
        lines = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", answer.read().decode(), re.MULTILINE)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return next((float(n) for told, n in lines if all(label in told for label in wanted)), None)


def test_holds_are_seen_while_they_last_and_none_is_left() -> None:
    with fleet("--engine", "sim", env=SLOW) as running:
        running.wait_ready()
        asyncio.run(watch_one_request(running))
        wait_until("no hold is left", lambda: not running.ctl("kv")["holds_total"])
        told = running.ctl("kv")
        assert told["orphans"] == 0
        counts = {worker["name"]: worker["counts"] for worker in told["workers"]}
        assert counts["d0"]["handoffs_in"] == counts["p0"]["handoffs_out"] == 1
        assert counts["d0"]["bytes_in"] == counts["p0"]["bytes_out"] > 0
        received = "baton_kv_handoffs_received_total"
        wait_until(
            "the handoff is in the metrics", lambda: metric(running, received, worker="d0") == 1.0
        )
        assert metric(running, "baton_kv_orphan_holds") == 0.0
        ended = "baton_router_requests_ended_total"
        wait_until("the request's end is in the metrics", lambda: metric(running, ended) == 1.0)
        assert metric(running, "baton_router_requests_placed_total") == 1.0
        assert metric(running, "baton_router_workers_ready", role="prefill") == 1.0
        assert metric(running, "baton_router_workers_ready", role="decode") == 1.0


async def watch_one_request(running: Fleet) -> None:
    """Both sides are in the ledger while the prompt is computed."""
    client = openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    asking = client.completions.create(model="baton-tiny", prompt=PROMPT, max_tokens=4)
    request = asyncio.get_running_loop().create_task(asking)
    seen: dict[str, dict[str, object]] = {}

    def both_sides() -> bool:
        seen.update({hold["side"]: hold for hold in running.ctl("kv")["holds"]})
        return set(seen) == {"send", "receive"}

    await asyncio.to_thread(wait_until, "both sides hold KV", both_sides)
    assert (seen["send"]["owner"], seen["send"]["peer"]) == ("p0", "d0")
    assert (seen["receive"]["owner"], seen["receive"]["peer"]) == ("d0", "p0")
    assert not any(hold["orphan"] for hold in seen.values())
    assert "LEASE LEFT" in running.told("kv")
    await request

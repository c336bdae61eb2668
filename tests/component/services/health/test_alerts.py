"""Alerts reach a command and a webhook; what fails is said, and nothing waits."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.config import HealthConfig
from common.process.lifecycle import Tasks
from services.health.alerts import Alerts

ALERT: dict[str, Any] = {"daemon": "h0", "verdict": "down", "reasons": ["the disk is full"]}


async def run(config: HealthConfig, done: asyncio.Event, *alerts: dict[str, Any]) -> list[str]:
    """What was logged until `done`."""
    with structlog.testing.capture_logs() as logs:
        tasks = Tasks()
        teller = Alerts(config, structlog.get_logger("fresh"))
        for alert in alerts:
            teller.send(alert)
        tasks.start("alerts", teller.run())
        async with asyncio.timeout(20):
            await done.wait()
        await tasks.cancel_all()
    return [str(log["sentence"]) for log in logs]


async def test_command_and_webhook_are_told_the_latest(tmp_path: Path) -> None:
    record_answer: list[object] = []
    done, file = asyncio.Event(), tmp_path / "alert.json"

    async def hook(request: web.Request) -> web.Response:
        record_answer.append(await request.json())
        done.set()
        return web.Response()

    code = f"import sys; open({str(file)!r}, 'w').write(sys.stdin.read())"
    app = web.Application()
    app.add_routes([web.post("/hook", hook)])
    async with TestServer(app) as server:
        config = HealthConfig(
            alert_command=shlex.join([sys.executable, "-c", code]),
            alert_webhook=str(server.make_url("/hook")),
        )
        logs = await run(config, done, {"verdict": "degraded"}, ALERT)
    assert record_answer == [ALERT]
    assert json.loads(file.read_text()) == ALERT
    assert logs == []


async def test_a_failure_is_said_and_the_other_way_is_still_used() -> None:
    done = asyncio.Event()

    async def hook(_: web.Request) -> web.Response:
        done.set()
        return web.Response(status=500)

    app = web.Application()
    app.add_routes([web.post("/hook", hook)])
    async with TestServer(app) as server:
        config = HealthConfig(
            alert_command="/does/not/exist", alert_webhook=str(server.make_url("/hook"))
        )
        logs = await run(config, done, ALERT)
    assert "the alert command failed" in logs[0]

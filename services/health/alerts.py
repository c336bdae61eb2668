"""Reports a change of this host's verdict by a command, by a webhook, or both.

An alert is one JSON object; the command reads it on its standard input, the webhook receives it as
the body of a POST. Each delivery may take `SECONDS`, one at a time. Of the verdicts that change
meanwhile only the latest is delivered. A failed delivery is logged and not repeated.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from common.config import HealthConfig
from common.process import hook
from common.telemetry.log import Logger

SECONDS = 10.0


class Alerts:
    """Delivers changes of the verdict. `send` only stores the latest alert; the task `run` delivers
    it."""

    def __init__(self, config: HealthConfig, log: Logger) -> None:
        self._command = config.alert_command
        self._webhook = config.alert_webhook
        self._log = log
        self._latest: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=1)

    def send(self, alert: dict[str, Any]) -> None:
        if self._latest.full():
            self._latest.get_nowait()
        self._latest.put_nowait(alert)

    async def run(self) -> None:
        while True:
            body = msgspec.json.encode(await self._latest.get())
            for name, target, deliver in (
                ("command", self._command, hook.run),
                ("webhook", self._webhook, hook.post),
            ):
                result = await deliver(target, body, SECONDS) if target else hook.HookResult(True)
                if result.fault:
                    sentence = f"the alert {name} failed: it {result.fault}"
                    self._log.warning("alert.failed", sentence=sentence)

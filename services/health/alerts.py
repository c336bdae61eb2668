"""Reports a change of this host's verdict by a command, by a webhook, or both.

An alert is one JSON object; the command reads it on its standard input, the webhook receives it as
the body of a POST. Each delivery may take `SECONDS`, one at a time. Of the verdicts that change
meanwhile only the latest is delivered. A failed delivery is logged and not repeated.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import aiohttp
import msgspec

from common.config import HealthConfig
from common.telemetry.log import Logger

SECONDS = 10.0


class Alerts:
    """Delivers changes of the verdict. `send` only stores the latest alert; the task `run` delivers
    it."""

    def __init__(self, config: HealthConfig, log: Logger) -> None:
        self._command = shlex.split(config.alert_command)
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
            for name, deliver in (("command", self._run), ("webhook", self._post)):
                try:
                    async with asyncio.timeout(SECONDS):
                        await deliver(body)
                except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
                    why = str(error) or f"it took longer than {SECONDS:g} s"
                    sentence = f"the alert {name} failed: {why}"
                    self._log.warning("alert.failed", sentence=sentence)

    async def _run(self, body: bytes) -> None:
        if not self._command:
            return
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            await process.communicate(body)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise ValueError(f"it exited with {process.returncode}")

    async def _post(self, body: bytes) -> None:
        if not self._webhook:
            return
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self._webhook, data=body, headers=headers) as answer,
        ):
            if answer.status >= 300:
                raise ValueError(f"it answered {answer.status}")

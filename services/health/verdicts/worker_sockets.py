"""Requests to the workers of this host, over their metrics sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec

from common.config import HealthConfig
from common.messages import CanaryAnswer, HealthVerdict, HealthVerdictUpdate, Role
from common.telemetry.exposition import SUFFIX
from services.health.metrics.merge import Daemon

TELL_SECONDS = 1.0
MARGIN_SECONDS = 1.0
STANDS_ROUNDS = 5
STANDS_MS_MIN = 10_000.0
WORKERS = (Role.PREFILL, Role.DECODE)


class HostWorkers:
    """Never raises because of a worker."""

    def __init__(self, run_dir: Path, config: HealthConfig) -> None:
        self._run_dir = run_dir
        self._canary_ms = config.canary_ms_max
        self._stands_ms = max(STANDS_MS_MIN, STANDS_ROUNDS * config.interval_ms)

    async def run_canary(self, worker: Daemon) -> CanaryAnswer:
        """The worker enforces the time limit; this waits MARGIN_SECONDS longer."""
        seconds = self._canary_ms / 1000
        try:
            path = f"/canary?ms={self._canary_ms:g}"
            status, body = await self._post(worker, path, b"", seconds + MARGIN_SECONDS)
            if status == 200:
                return msgspec.json.decode(body, type=CanaryAnswer)
            why = f"it answers {status} to a canary"
            return CanaryAnswer(outcome="skipped", fingerprint="", sentence=why)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.MsgspecError):
            why = f"its daemon gave no answer within {seconds + MARGIN_SECONDS:g} s"
            return CanaryAnswer(outcome="failed", fingerprint="", sentence=why)

    async def send_verdicts(self, verdicts: Mapping[Daemon, HealthVerdict | None]) -> None:
        """Sends all at the same time. A worker that does not answer gets the next round's."""
        await asyncio.gather(
            *(self._send_verdict(worker, verdict) for worker, verdict in verdicts.items())
        )

    async def _send_verdict(self, worker: Daemon, verdict: HealthVerdict | None) -> None:
        body = msgspec.json.encode(
            HealthVerdictUpdate(health_verdict=verdict, for_ms=self._stands_ms)
        )
        try:
            await self._post(worker, "/opinion", body, TELL_SECONDS)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return

    async def _post(
        self, worker: Daemon, path: str, body: bytes, seconds: float
    ) -> tuple[int, bytes]:
        socket = self._run_dir / f"{worker[0]}.{worker[1]}{SUFFIX}"
        timeout = aiohttp.ClientTimeout(total=seconds)
        connector = aiohttp.UnixConnector(path=str(socket))
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(f"http://worker{path}", data=body) as answer,
        ):
            return answer.status, await answer.read()

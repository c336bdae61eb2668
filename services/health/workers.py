"""How the health daemon speaks with the workers of its host: over their metrics sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec

from common.config import HealthConfig
from common.exposition import SUFFIX
from common.messages import CanaryAnswer, Opinion, OpinionTold, Role
from services.health.merge import Daemon

TELL_SECONDS = 1.0
MARGIN_SECONDS = 1.0
STANDS_ROUNDS = 5
STANDS_MS_MIN = 10_000.0
WORKERS = (Role.PREFILL, Role.DECODE)


class HostWorkers:
    """Never raises for what a worker does or leaves undone."""

    def __init__(self, run_dir: Path, config: HealthConfig) -> None:
        self._run_dir = run_dir
        self._canary_ms = config.canary_ms_max
        self._stands_ms = max(STANDS_MS_MIN, STANDS_ROUNDS * config.interval_ms)

    async def fly(self, worker: Daemon) -> CanaryAnswer:
        """The worker itself keeps the time; this waits a little longer."""
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

    async def tell(self, opinions: Mapping[Daemon, Opinion | None]) -> None:
        """All at once; who does not hear it hears it next round."""
        await asyncio.gather(*(self._tell(worker, each) for worker, each in opinions.items()))

    async def _tell(self, worker: Daemon, opinion: Opinion | None) -> None:
        body = msgspec.json.encode(OpinionTold(opinion=opinion, for_ms=self._stands_ms))
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

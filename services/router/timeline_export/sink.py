"""Where the records of ended requests go: the file, and spans if an endpoint is configured."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from common.clock import Clock
from common.config import Config
from common.errors import ConfigError
from common.telemetry.log import Logger
from common.telemetry.timeline import TimelineRecord
from services.router.timeline_export.file import TimelineFile

if TYPE_CHECKING:
    from services.router.timeline_export.spans import Spans

SEND_SECONDS = 2.0


class TimelineSink:
    """The constructor raises ConfigError when spans are configured without OpenTelemetry."""

    def __init__(self, config: Config, name: str, clock: Clock, log: Logger) -> None:
        path = Path(config.fleet.run_dir) / f"{name}.timeline.jsonl"
        self._file = TimelineFile(path, config.timeline.file_mib << 20, log)
        self._clock = clock
        self._spans = _spans(config)

    def add(self, record: TimelineRecord) -> None:
        unix_ms = self._clock.unix_ms()
        self._file.add(record, unix_ms)
        if self._spans is not None:
            self._spans.add(record, unix_ms)

    def flush(self) -> None:
        self._file.flush()

    async def close(self) -> None:
        self._file.flush()
        if self._spans is not None:
            closing = asyncio.to_thread(self._spans.close)
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await closing
            except TimeoutError:
                return


def _spans(config: Config) -> Spans | None:
    timeline = config.timeline
    if not timeline.otlp_endpoint:
        return None
    try:
        from services.router.timeline_export.spans import Spans
    except ImportError as error:
        sentence = f"spans need OpenTelemetry: pip install 'baton-serve[otel]' ({error})"
        raise ConfigError("timeline.otlp_endpoint", sentence) from error
    return Spans(timeline.otlp_endpoint, timeline.otlp_share)

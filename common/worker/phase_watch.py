"""The meter of a worker's phases, fed by its daemon, and the GPUs beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from common.clock import Clock
from common.engine.port import Batch, Engine, engine_key
from common.errors import BatonError
from common.messages import PhaseReport
from common.telemetry.log import Logger
from common.worker.actions import AbortInEngine, AddToEngine
from common.worker.gpu import GpuReader, GpuReading, open_reader
from common.worker.phases import PhaseMeter

GPU_SECONDS = 1.0


class PhaseWatch:
    """`open_gpu` finds the GPUs of this process; raises BatonError where there are none."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        log: Logger,
        open_gpu: Callable[[], GpuReader] = open_reader,
    ) -> None:
        self.meter = PhaseMeter(clock.monotonic())
        self._engine = engine
        self._clock = clock
        self._log = log
        self._open_gpu = open_gpu
        self._gpu: GpuReading | None = None

    def told(self, command: object) -> None:
        """What the engine is told."""
        if isinstance(command, AddToEngine):
            self.meter.added(command.request)
        elif isinstance(command, AbortInEngine):
            self.meter.dropped(engine_key(command.request_id, command.attempt))

    def stepped(self, batch: Batch) -> Batch:
        """As `PhaseMeter.stepped`; returns the batch."""
        self.meter.stepped(batch)
        return batch

    def report(self) -> PhaseReport:
        status = self._engine.kv_status()
        sent = status.holds_total if status is not None else 0
        return self.meter.report(self._clock.monotonic(), sent, self._gpu)

    async def watch_gpu(self) -> None:
        """Reads the GPUs every `GPU_SECONDS`, aside, because NVML may be slow. Ends where there are
        none, or when they can be read no more."""
        try:
            reader = await asyncio.to_thread(self._open_gpu)
            sentence = f"NVML tells how busy {reader.count} GPUs are"
            self._log.info("gpu.watched", sentence=sentence)
            while True:
                self._gpu = await asyncio.to_thread(reader.read)
                await asyncio.sleep(GPU_SECONDS)
        except BatonError as error:
            self._gpu = None
            self._log.debug("gpu.unwatched", sentence=error.message)

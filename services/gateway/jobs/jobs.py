"""All parts of a gateway's jobs, put together for its daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from aiohttp.typedefs import Handler
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from common.clock import Clock
from common.config import GatewayConfig
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.jobs import batches
from services.gateway.jobs.batch_work import BatchWork
from services.gateway.jobs.leases import Leases, Loop
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.jobs.line_work import LineWork
from services.gateway.jobs.lines import Held, Result
from services.gateway.jobs.routes import JobRoutes


class Jobs(Collector):
    """Serves and runs jobs from `start` to `close`. `holder`: the process. `answers` makes what
    runs lines, when they are first run."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        holder: str,
        answers: Callable[[], LineAnswers],
        clock: Clock,
        log: Logger,
    ) -> None:
        self.ledger = Ledger(Path(config.jobs.path))
        self._config = config
        self._holder = holder
        self._answers = answers
        self._clock = clock
        self._log = log
        self._work: BatchWork | None = None
        self._lines: Leases[Held, Result] | None = None
        self._batches = Loop("batches", self._work_on_batches, log)
        self._takes = True
        self._routes = JobRoutes(self.ledger, config, clock, self._wake)

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        return self._routes.routes()

    async def start(self, tasks: Tasks) -> None:
        """Raises ConfigError if the folder or the ledger cannot be used."""
        await self.ledger.open()
        jobs, answers = self._config.jobs, self._answers()
        self._work = BatchWork(
            self.ledger,
            jobs,
            self._config.body_bytes_max,
            holder=self._holder,
            clock=self._clock,
            log=self._log,
        )
        line_work = LineWork(
            self.ledger,
            answers,
            self._work,
            jobs,
            holder=self._holder,
            clock=self._clock,
            on_settled=self._batches.wake,
            on_placed=self._look,
        )
        self._lines = Leases(
            line_work,
            lease_ms=jobs.lease_ms,
            is_possible=lambda: answers.is_possible,
            clock=self._clock,
            log=self._log,
        )
        self._lines.start(tasks)
        self._batches.start(tasks)

    def stop_taking(self) -> None:
        """The daemon drains: lines that run may end."""
        self._takes = False
        if self._lines is not None:
            self._lines.stop_taking()

    async def close(self) -> None:
        """What still runs goes back to the ledger, for another process or the next one.
        Idempotent."""
        leases, self._lines = self._lines, None
        if leases is not None:
            await self._batches.close()
            await leases.close()
            await self.ledger.close()

    def _wake(self) -> None:
        self._batches.wake()
        if self._lines is not None:
            self._lines.wake()

    def _look(self) -> None:
        """Lines may be taken."""
        if self._lines is not None:
            self._lines.look()

    async def _work_on_batches(self) -> None:
        """Raises BatonError if the ledger cannot be used."""
        assert self._work is not None
        if await self.ledger.read(batches.is_quiet):
            return
        while self._takes and await self._work.once():
            self._look()

    def collect(self) -> Iterator[Metric]:
        if self._lines is not None:
            yield from self._lines.collect("baton_gateway_batch_lines", "Lines of batches")

"""All parts of a gateway's jobs, put together for its daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from aiohttp.typedefs import Handler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.clock import Clock
from common.config import GatewayConfig
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.jobs.batch_work import BatchWork
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.jobs.routes import JobRoutes
from services.gateway.jobs.runner import Runner


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
        self._runner: Runner | None = None
        self._routes = JobRoutes(self.ledger, config, clock, self._wake)

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        return self._routes.routes()

    async def start(self, tasks: Tasks) -> None:
        """Raises ConfigError if the folder or the ledger cannot be used."""
        await self.ledger.open()
        jobs = self._config.jobs
        work = BatchWork(
            self.ledger,
            jobs,
            self._config.body_bytes_max,
            holder=self._holder,
            clock=self._clock,
            log=self._log,
        )
        self._runner = Runner(
            self.ledger,
            self._answers(),
            work,
            jobs,
            holder=self._holder,
            clock=self._clock,
            log=self._log,
        )
        self._runner.start(tasks)

    def stop_taking(self) -> None:
        """The daemon drains: lines that run may end."""
        if self._runner is not None:
            self._runner.stop_taking()

    async def close(self) -> None:
        """What still runs goes back to the ledger, for another process or the next one.
        Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()
            await self.ledger.close()

    def _wake(self) -> None:
        if self._runner is not None:
            self._runner.wake()

    def collect(self) -> Iterator[Metric]:
        if self._runner is None:
            return
        counts = self._runner.counts
        ended = CounterMetricFamily(
            "baton_gateway_batch_lines",
            "Lines of batches that this process ran, by what became of them",
            labels=["outcome"],
        )
        ended.add_metric(["completed"], counts.completed)
        ended.add_metric(["failed"], counts.failed)
        ended.add_metric(["returned"], counts.returned)
        ended.add_metric(["late"], counts.late)
        yield ended
        yield CounterMetricFamily(
            "baton_gateway_batch_lines_reclaimed",
            "Lines that were taken back from processes that said nothing any more",
            value=counts.reclaimed,
        )
        yield GaugeMetricFamily(
            "baton_gateway_batch_lines_running",
            "Lines of batches under way",
            value=self._runner.running,
        )

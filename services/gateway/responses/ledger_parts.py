"""All that a gateway has in the ledger of jobs, put together for its daemon.

Without `[gateway.jobs] path` there is nothing, and each route names the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp.typedefs import Handler
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from common.clock import Clock
from common.config import GatewayConfig
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.jobs.jobs import Jobs
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.jobs.routes import refusing_routes as refusing_job_routes
from services.gateway.responses.responses import Responses
from services.gateway.responses.routes import refusing_routes
from services.gateway.responses.turns import Turns


class LedgerParts(Collector):
    """`holder`: the process, unique among all that use the ledger. `answers` makes what runs
    requests of the ledger, when they are first run."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        holder: str,
        answers: Callable[[], LineAnswers],
        clock: Clock,
        log: Logger,
    ) -> None:
        self._jobs: Jobs | None = None
        self._responses: Responses | None = None
        if not config.jobs.path:
            return
        self._jobs = Jobs(config, holder=holder, answers=answers, clock=clock, log=log)
        if config.jobs.responses_max:
            ledger = self._jobs.ledger
            self._responses = Responses(
                ledger, config, holder=holder, answers=answers, clock=clock, log=log
            )

    @property
    def turns(self) -> Turns | None:
        """None where no responses are stored."""
        return self._responses.turns if self._responses is not None else None

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each, those that are not served included."""
        jobs, responses = self._jobs, self._responses
        yield from jobs.routes() if jobs is not None else refusing_job_routes()
        yield from responses.routes() if responses is not None else refusing_routes()

    async def start(self, tasks: Tasks) -> None:
        """Raises ConfigError if the folder or the ledger cannot be used."""
        if self._jobs is not None:
            await self._jobs.start(tasks)
        if self._responses is not None:
            self._responses.start(tasks)

    def stop_taking(self) -> None:
        """The daemon drains: what runs may end."""
        if self._jobs is not None:
            self._jobs.stop_taking()
        if self._responses is not None:
            self._responses.stop_taking()

    async def close(self) -> None:
        """What still runs goes back to the ledger. Idempotent."""
        if self._responses is not None:
            await self._responses.close()
        if self._jobs is not None:
            await self._jobs.close()

    def collect(self) -> Iterator[Metric]:
        for part in filter(None, (self._jobs, self._responses)):
            yield from part.collect()

"""All parts of a gateway's stored responses, put together for its daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp.typedefs import Handler
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from common.clock import Clock
from common.config import GatewayConfig
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.jobs.leases import Leases
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.responses.background import BackgroundWork
from services.gateway.responses.event_writer import EventWriter
from services.gateway.responses.followers import Followers
from services.gateway.responses.records import Held, Result
from services.gateway.responses.routes import ResponseRoutes
from services.gateway.responses.turns import Turns


class Responses(Collector):
    """Stores, serves and runs responses. `ledger` is open from `start` to `close`. `holder`: the
    process. `answers` makes what runs those of the background."""

    def __init__(
        self,
        ledger: Ledger,
        config: GatewayConfig,
        *,
        holder: str,
        answers: Callable[[], LineAnswers],
        clock: Clock,
        log: Logger,
    ) -> None:
        self._ledger = ledger
        self._config = config.jobs
        self._holder = holder
        self._answers = answers
        self._clock = clock
        self._log = log
        self._background: Leases[Held, Result] | None = None
        self._followers = followers = Followers(ledger, clock)
        event_bytes_max = config.jobs.stream_mib_max << 20
        self._writer = EventWriter(ledger, event_bytes_max, on_written=followers.wake, log=log)
        self._routes = ResponseRoutes(ledger, followers, config, clock, self._ended)
        self.turns = Turns(ledger, followers, config, wake=self._wake, clock=clock, log=log)

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        return self._routes.routes()

    def start(self, tasks: Tasks) -> None:
        answers = self._answers()
        work = BackgroundWork(
            self._ledger,
            answers,
            self._writer,
            self._config,
            holder=self._holder,
            on_ended=self._followers.wake,
        )
        self._background = Leases(
            work,
            lease_ms=self._config.lease_ms,
            is_possible=lambda: answers.is_possible,
            clock=self._clock,
            log=self._log,
        )
        self._writer.start(tasks)
        self._background.start(tasks)

    def stop_taking(self) -> None:
        """The daemon drains: what runs may end."""
        if self._background is not None:
            self._background.stop_taking()

    async def close(self) -> None:
        """What still runs goes back to the ledger, for another process or the next one.
        Idempotent."""
        background, self._background = self._background, None
        if background is not None:
            await background.close()
            await self._writer.close()

    def _wake(self) -> None:
        if self._background is not None:
            self._background.wake()

    def _ended(self, response_id: str) -> None:
        """A client had it end."""
        self._followers.wake(response_id)
        self._wake()

    def collect(self) -> Iterator[Metric]:
        counts = self.turns.counts
        stored = CounterMetricFamily(
            "baton_gateway_responses",
            "Responses that were to be stored, by what became of them",
            labels=["outcome"],
        )
        stored.add_metric(["stored"], counts.stored)
        stored.add_metric(["unstored"], counts.unstored)
        stored.add_metric(["evicted"], counts.evicted)
        yield stored
        if self._background is not None:
            name = "baton_gateway_background_responses"
            yield from self._background.collect(name, "Background responses")

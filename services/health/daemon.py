"""The health daemon: one per host. It probes the host and its daemons and derives verdicts.

No other daemon waits for it, so its absence does no harm. It sends its verdict on a worker to that
worker, which reports it to the routers. `/health` answers with the verdict and its reasons, with
status 200 unless the verdict is down; `/live` always answers 200; `/metrics` merges the metrics of
all daemons of the host; `/` is the dashboard. `dashboard/guard.py` says who has access.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from common.clock import Clock, SystemClock
from common.config import Config
from common.errors import BatonError, Code
from common.messages import Role
from common.net.connection_limits import ConnectionLimits, LimitedConnection
from common.net.endpoints import MAIN, admin_address
from common.process.descriptors import kept_from_clients, soft_limit
from common.process.lifecycle import Tasks
from common.telemetry.exposition import Exposition
from common.telemetry.log import Logger
from services.health.alerts import Alerts
from services.health.dashboard.fleet import FleetWatch
from services.health.dashboard.guard import HealthGuard
from services.health.dashboard.pages import Pages
from services.health.metrics.health_metrics import HealthMetrics
from services.health.metrics.merge import Daemon, merged
from services.health.metrics.scrape import scrape
from services.health.verdicts.canaries import Canaries
from services.health.verdicts.host_verdict import VerdictHysteresis
from services.health.verdicts.probes import (
    daemon_probes,
    flapping_probes,
    gpu_probes,
    host_probes,
    pair_probes,
    router_probe,
)
from services.health.verdicts.worker_sockets import WORKERS, HostWorkers
from services.health.verdicts.worker_verdicts import WorkerVerdicts

SHUTDOWN_SECONDS = 1.0
CANARY_AGAIN_SECONDS = 5.0
#: In which a client must send a request's head.
HEADER_SECONDS = 10.0


class Health:
    """A `common.process.lifecycle.Service`: one health daemon."""

    stop_seconds = 5.0

    def __init__(self, config: Config, name: str, clock: Clock, log: Logger) -> None:
        self._config = config
        self._name = name
        self._log = log
        self._run_dir = Path(config.fleet.run_dir)
        self._hysteresis = VerdictHysteresis()
        self._canaries = Canaries()
        self._worker_verdicts = WorkerVerdicts()
        self._workers = HostWorkers(self._run_dir, config.health)
        self._host_workers: list[Daemon] = []
        self._own = HealthMetrics(self._hysteresis)
        self._exposition = Exposition(config, Role.HEALTH, name, self._own)
        self._alerts = Alerts(config.health, log)
        self._guard = HealthGuard(config.health, log)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        kept = kept_from_clients(config, soft_limit())
        self.connection_limits = ConnectionLimits(
            config.health.connections_max, 0, HEADER_SECONDS, kept
        )
        routers = (MAIN, *config.router.standby)
        #: The state of the fleet, as a router reports it.
        self.fleet = FleetWatch([admin_address(config, router) for router in routers], clock)
        #: One event for each open dashboard page; all are set after every round.
        self.watchers: set[asyncio.Event] = set()
        #: Host and port that are bound, known after `start`.
        self.http_address = ("", 0)
        #: Method and path pattern of every route, known after `start`.
        self.http_routes: list[tuple[str, str]] = []

    async def start(self, tasks: Tasks) -> str:
        app = web.Application(middlewares=[self._guard.middleware()])
        app.add_routes(Pages(self).routes())
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        host, port = self._config.health.host, self._config.health.port
        server = self._runner.server
        assert server is not None
        limits = self.connection_limits
        try:
            self._listener = listener = await asyncio.get_running_loop().create_server(
                lambda: LimitedConnection(limits, server), host, port
            )
        except OSError as error:
            raise BatonError(
                Code.CONFIG_INVALID,
                f"health.port: cannot listen on {host}:{port}: {error.strerror}",
            ) from error
        bound = listener.sockets[0].getsockname()
        self.http_address = (str(bound[0]), int(bound[1]))
        self.http_routes = [
            (route.method, resource.canonical)
            for resource in app.router.resources()
            for route in resource
        ]
        await self._exposition.start(tasks)
        tasks.start("probes", self._probe())
        tasks.start("alerts", self._alerts.run())
        if self._config.health.canary_interval_s:
            tasks.start("canaries", self._run_canaries())
        return f"health {self._name} ready on http://{host}:{port}/health"

    async def stop(self) -> None:
        await self._exposition.close()
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def verdict(self) -> dict[str, Any]:
        hysteresis = self._hysteresis
        return {"verdict": hysteresis.verdict.name.lower(), "reasons": list(hysteresis.reasons)}

    async def metrics(self) -> str:
        pages, _ = await scrape(self._run_dir)
        return merged(pages)

    async def _probe(self) -> None:
        while True:
            self._guard.refresh()
            await self.fleet.poll(closely=bool(self.watchers))
            pages, silent = await scrape(self._run_dir)
            self._host_workers = [daemon for daemon in pages if daemon[0] in WORKERS]
            self._canaries.retain(self._host_workers)
            self._own.probes = [
                *host_probes(self._run_dir),
                router_probe(self.fleet.status),
                *daemon_probes(pages, silent),
                *flapping_probes(self._run_dir),
                *self._canaries.probes(),
                *pair_probes(self.fleet.troubled_pairs),
                *gpu_probes(),
            ]
            if self._hysteresis.round(self._own.probes):
                self._alert()
            for fresh in self.watchers:
                fresh.set()
            await self._workers.send_verdicts(
                self._worker_verdicts.round(self._host_workers, self._own.probes)
            )
            await asyncio.sleep(self._config.health.interval_ms / 1000)

    async def _run_canaries(self) -> None:
        """Sends canaries to all workers of this host at the same time."""
        interval = self._config.health.canary_interval_s
        while True:
            soon = min(interval, CANARY_AGAIN_SECONDS)
            await asyncio.sleep(soon if self._canaries.failing else interval)
            workers = list(self._host_workers)
            answers = await asyncio.gather(
                *(self._workers.run_canary(worker) for worker in workers)
            )
            for worker, answer in zip(workers, answers, strict=True):
                self._canaries.record_answer(worker, answer)

    def _alert(self) -> None:
        verdict = self.verdict()
        sentence = "; ".join(verdict["reasons"]) or "all probes are good again"
        self._log.warning("host.judged", verdict=verdict["verdict"], sentence=sentence)
        self._alerts.send({"daemon": self._name, **verdict})


def make(config: Config, name: str, log: Logger) -> Health:
    """Inside the running loop."""
    return Health(config, name, SystemClock(), log)

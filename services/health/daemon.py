"""The health daemon: one per host. Measures, judges, shows, and tells.

It is an observer: nothing waits for it, so its absence harms nothing. What it thinks of a worker of
its host it tells that worker, which tells the routers. `/health` answers 200 unless
the verdict is down, with the verdict and its reasons; `/live` always 200; `/metrics` is the page of
all daemons of the host; `/` is the dashboard. Who may ask is in `guard.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from common.clock import Clock, SystemClock
from common.config import Config
from common.endpoints import MAIN, admin_address
from common.errors import BatonError, Code
from common.exposition import Exposition
from common.lifecycle import Tasks
from common.log import Logger
from common.messages import Role
from services.health.alerts import Alerts
from services.health.canaries import Canaries
from services.health.fleet import FleetWatch
from services.health.guard import HealthGuard
from services.health.merge import Daemon, merged
from services.health.metrics import HealthMetrics
from services.health.opinions import Opinions
from services.health.pages import Pages
from services.health.probes import (
    daemon_probes,
    gpu_probes,
    host_probes,
    pair_probes,
    router_probe,
)
from services.health.scrape import scrape
from services.health.verdict import Judge
from services.health.workers import WORKERS, HostWorkers

SHUTDOWN_SECONDS = 1.0
CANARY_AGAIN_SECONDS = 5.0


class Health:
    """A `common.lifecycle.Service`. `watchers`: the pages that look, each woken every round.
    `http_address` and `http_routes` (method and path pattern of all that is served) are known after
    `start`."""

    stop_seconds = 5.0

    def __init__(self, config: Config, name: str, clock: Clock, log: Logger) -> None:
        self._config = config
        self._name = name
        self._log = log
        self._run_dir = Path(config.fleet.run_dir)
        self._judge = Judge()
        self._canaries = Canaries()
        self._opinions = Opinions()
        self._workers = HostWorkers(self._run_dir, config.health)
        self._there: list[Daemon] = []
        self._own = HealthMetrics(self._judge)
        self._exposition = Exposition(config, Role.HEALTH, name, self._own)
        self._alerts = Alerts(config.health, log)
        self._guard = HealthGuard(config.health, log)
        self._runner: web.AppRunner | None = None
        routers = (MAIN, *config.router.standby)
        self.fleet = FleetWatch([admin_address(config, router) for router in routers], clock)
        self.watchers: set[asyncio.Event] = set()
        self.http_address = ("", 0)
        self.http_routes: list[tuple[str, str]] = []

    async def start(self, tasks: Tasks) -> str:
        app = web.Application(middlewares=[self._guard.middleware()])
        app.add_routes(Pages(self).routes())
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        host, port = self._config.health.host, self._config.health.port
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            raise BatonError(
                Code.CONFIG_INVALID,
                f"health.port: cannot listen on {host}:{port}: {error.strerror}",
            ) from error
        bound = self._runner.addresses[0]
        self.http_address = (str(bound[0]), int(bound[1]))
        self.http_routes = [
            (route.method, each.canonical) for each in app.router.resources() for route in each
        ]
        await self._exposition.start(tasks)
        tasks.start("probes", self._probe())
        tasks.start("alerts", self._alerts.run())
        if self._config.health.canary_interval_s:
            tasks.start("canaries", self._fly())
        return f"health {self._name} ready on http://{host}:{port}/health"

    async def stop(self) -> None:
        await self._exposition.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def verdict(self) -> dict[str, Any]:
        judge = self._judge
        return {"verdict": judge.verdict.name.lower(), "reasons": list(judge.reasons)}

    async def metrics(self) -> str:
        pages, _ = await scrape(self._run_dir)
        return merged(pages)

    async def _probe(self) -> None:
        while True:
            self._guard.refresh()
            await self.fleet.look(closely=bool(self.watchers))
            pages, silent = await scrape(self._run_dir)
            self._there = [each for each in pages if each[0] in WORKERS]
            self._canaries.keep(self._there)
            self._own.probes = [
                *host_probes(self._run_dir),
                router_probe(self.fleet.status),
                *daemon_probes(pages, silent),
                *self._canaries.probes(),
                *pair_probes(self.fleet.apart),
                *gpu_probes(),
            ]
            if self._judge.round(self._own.probes):
                self._tell()
            for fresh in self.watchers:
                fresh.set()
            await self._workers.tell(self._opinions.round(self._there, self._own.probes))
            await asyncio.sleep(self._config.health.interval_ms / 1000)

    async def _fly(self) -> None:
        """All workers of this host at a time, and each after its answer."""
        interval = self._config.health.canary_interval_s
        while True:
            soon = min(interval, CANARY_AGAIN_SECONDS)
            await asyncio.sleep(soon if self._canaries.failing else interval)
            workers = list(self._there)
            answers = await asyncio.gather(*(self._workers.fly(each) for each in workers))
            for worker, answer in zip(workers, answers, strict=True):
                self._canaries.heard(worker, answer)

    def _tell(self) -> None:
        told = self.verdict()
        sentence = "; ".join(told["reasons"]) or "all probes are good again"
        self._log.warning("host.judged", verdict=told["verdict"], sentence=sentence)
        self._alerts.tell({"daemon": self._name, **told})


def make(config: Config, name: str, log: Logger) -> Health:
    """Inside the running loop."""
    return Health(config, name, SystemClock(), log)

"""A daemon's `/metrics` on a unix socket in the run directory, and the metrics that all daemons
have: those of the process and of its event loop.

Theory of operation: a socket per daemon needs no port and no keys, since the permissions of the run
directory guard it. The host's health daemon scrapes them all and shows one page. Metrics are read
from the daemon's own counters at a scrape (`Collector`), so that counting takes no locks and an
idle daemon spends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from common.config import Config
from common.process.lifecycle import Tasks
from common.telemetry.buckets import Buckets
from common.telemetry.loop_lag import LoopLag

TEXT = "text/plain; version=0.0.4; charset=utf-8"
SHUTDOWN_SECONDS = 0.2
SUFFIX = ".metrics.sock"
Values = TypeVar("Values", bound=tuple[str, ...])


class Exposition:
    """The metrics socket of one daemon, `RUN_DIR/ROLE.NAME.metrics.sock`. `routes` are further
    routes that the daemon answers there to other daemons of this host."""

    def __init__(
        self,
        config: Config,
        role: str,
        name: str,
        *collectors: Collector,
        routes: Sequence[web.RouteDef] = (),
    ) -> None:
        self._routes = routes
        self._path = Path(config.fleet.run_dir) / f"{role}.{name}{SUFFIX}"
        self._registry = CollectorRegistry()
        self._lag = LoopLag(structlog.get_logger("baton").bind(service=role, name=name))
        self._runner: web.AppRunner | None = None
        ProcessCollector(registry=self._registry)
        for collector in (self._lag, *collectors):
            self._registry.register(collector)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    async def start(self, tasks: Tasks) -> None:
        app = web.Application()
        app.add_routes([web.get("/metrics", self._metrics), *self._routes])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        self._path.unlink(missing_ok=True)
        await web.UnixSite(self._runner, str(self._path)).start()
        self._path.chmod(0o660)
        tasks.start("loop-lag", self._lag.run())

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._path.unlink(missing_ok=True)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.text(), headers={"Content-Type": TEXT})


def exposed(collector: Collector) -> bytes:
    """Its metrics alone, as text."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


def histogram(name: str, help_: str, rows: Mapping[Values, Buckets], *labels: str) -> Metric:
    """A metric of histograms. `rows` has one for each combination of label values."""
    family = HistogramMetricFamily(name, help_, labels=list(labels))
    for values, buckets in rows.items():
        family.add_metric(list(values), buckets.cumulative(), buckets.total)
    return family

"""The health daemon: one per host. Measures, judges, and says so over HTTP and in the log.

It is an observer: nothing waits for it, so its absence harms nothing. `/health` answers 200 unless
the verdict is down, with the verdict and its reasons; `/live` always 200; `/metrics` Prometheus
text. Who may ask is in `guard.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from common.config import Config
from common.endpoints import admin_address
from common.errors import BatonError, Code
from common.lifecycle import Tasks
from common.log import Logger
from services.health.fleet_metrics import FleetMetrics
from services.health.guard import HealthGuard
from services.health.probes import host_probes, router_kv, router_probe, router_status
from services.health.verdict import Judge, Verdict


class Health:
    """A `common.lifecycle.Service`. `http_address` and `http_routes` (method and path pattern of
    all that is served) are known after `start`."""

    stop_seconds = 5.0

    def __init__(self, config: Config, name: str, log: Logger) -> None:
        self._config = config
        self._name = name
        self._log = log
        self._judge = Judge()
        self._registry = CollectorRegistry()
        self._probe_gauge = Gauge(
            "baton_health_probe",
            "Last value of each probe: a share of the whole, or 1 for a failed check",
            ["probe"],
            registry=self._registry,
        )
        self._verdict_gauge = Gauge(
            "baton_health_verdict", "0 up, 1 degraded, 2 down", registry=self._registry
        )
        self._fleet = FleetMetrics()
        self._registry.register(self._fleet)
        self._guard = HealthGuard(config.health, log)
        self._runner: web.AppRunner | None = None
        self.http_address = ("", 0)
        self.http_routes: list[tuple[str, str]] = []

    async def start(self, tasks: Tasks) -> str:
        app = web.Application(middlewares=[self._guard.middleware()])
        app.add_routes(
            [
                web.get("/health", self._get_health),
                web.get("/live", self._get_live),
                web.get("/metrics", self._get_metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
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
        tasks.start("probes", self._probe())
        return f"health {self._name} ready on http://{host}:{port}/health"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _probe(self) -> None:
        run_dir = Path(self._config.fleet.run_dir)
        admin = admin_address(self._config)
        while True:
            self._guard.refresh()
            self._fleet.status = await router_status(admin)
            self._fleet.kv = await router_kv(admin)
            probes = [*host_probes(run_dir), router_probe(self._fleet.status)]
            for probe in probes:
                self._probe_gauge.labels(probe.name).set(probe.value)
            if self._judge.round(probes):
                self._log.warning(
                    "host.judged",
                    verdict=self._judge.verdict.name.lower(),
                    sentence="; ".join(self._judge.reasons) or "all probes are good again",
                )
            self._verdict_gauge.set(self._judge.verdict)
            await asyncio.sleep(self._config.health.interval_ms / 1000)

    async def _get_health(self, _: web.Request) -> web.Response:
        verdict = self._judge.verdict
        return web.json_response(
            {"verdict": verdict.name.lower(), "reasons": list(self._judge.reasons)},
            status=503 if verdict is Verdict.DOWN else 200,
        )

    async def _get_live(self, _: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _get_metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def make(config: Config, name: str, log: Logger) -> Health:
    """Inside the running loop."""
    return Health(config, name, log)

"""The gateway daemon: HTTP in front, routers and decode workers behind, the core between.

Order of shutdown: the daemon tells the router, /health reports it, and new requests are refused
(503 DRAINING). Where other processes listen on the port, new connections are left to them. Answers
may finish within `fleet.drain_ms`; those that do not end with an error. Then HTTP closes, and last
the sockets.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from common.clock import Clock, SystemClock
from common.config import Config, GatewayConfig
from common.errors import BatonError, Code, ConfigError
from common.messages import WIRE_VERSION, AdapterTold, AskAdapter, Fleet, Hello, Role
from common.model.embedded import EMBEDDED_MODEL_NAME
from common.model.resolve import model_folder
from common.net.connection_limits import ConnectionLimits
from common.net.endpoints import cell_addresses, control_addresses, stream_address
from common.net.sockets import Dial
from common.net.wire import encode
from common.process.handled_request import HandledRequest, handled_path
from common.process.lifecycle import Service, Tasks
from common.security.open import open_curve
from common.telemetry.exposition import Exposition, exposed
from common.telemetry.log import Logger
from services.gateway.auth.authenticator import Authenticator
from services.gateway.cells.core import CellsCore
from services.gateway.http.about_routes import AboutRoutes
from services.gateway.http.app import App
from services.gateway.http.full_api_routes import FullApiRoutes
from services.gateway.http.guard import Guard
from services.gateway.http.model_parts import ModelParts
from services.gateway.http.server import HttpServer
from services.gateway.http.stream_owners import StreamOwners
from services.gateway.http.tls import open_certificate
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.links.adapter_asks import AdapterAsks
from services.gateway.links.routers import RouterLinks
from services.gateway.links.workers import WorkerLinks
from services.gateway.metrics import CellMetrics, GatewayMetrics, VllmNames
from services.gateway.requests.events import (
    Action,
    DrainExpired,
    DrainStarted,
    Event,
    FromRouter,
    Note,
    Report,
    Stepped,
    Tick,
    ToRouter,
    ToWorker,
)
from services.gateway.responses.ledger_parts import LedgerParts
from services.gateway.text.light import light_text
from services.gateway.text.port import TextPort

TICK_SECONDS = 0.1
TICKS_PER_PING = 2
TICKS_PER_BEAT = 5
TICKS_PER_KEYS = 10
TICKS_PER_PING_ALL = 50
CLOSE_SECONDS = 6.0


def make(config: Config, name: str, log: Logger) -> Service:
    """Must run inside the loop. Raises ConfigError when the model's tokenizer cannot be used."""
    models = [config.of_model(served) for served in config.served]
    texts = {model.model.served_name: light_text(model) for model in models}
    roots = {model.model.served_name: _root(model) for model in models}
    return Gateway(config, name, texts, roots, SystemClock(), log)


def _root(config: Config) -> str:
    """What /v1/models gives as the place of the model's files."""
    embedded = config.model.path == EMBEDDED_MODEL_NAME
    return str(model_folder(config)) if embedded else config.model.path


class Gateway:
    """A `common.process.lifecycle.Service`. `texts` and `roots`: of each model, by its name."""

    def __init__(
        self,
        config: Config,
        name: str,
        texts: Mapping[str, TextPort],
        roots: Mapping[str, str],
        clock: Clock,
        log: Logger,
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._name = name
        self._incarnation = secrets.token_hex(8)
        capacities = {name: cell.capacity for name, cell in config.gateway.cells.items()}
        self._core = CellsCore(config.gateway, config.prices.keys_max, capacities)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._models = {
            served: ModelParts(config.of_model(served), text, roots[served], self._core, clock, log)
            for served, text in texts.items()
        }
        models = [parts.model for parts in self._models.values()]
        self._app = App(config, self._core, models, self._handle)
        self._certificate = open_certificate(config.gateway, log)
        self._authenticator = Authenticator(config.gateway.keys_file, log)
        for parts in self._models.values():
            parts.add_full_api(self._app, self._executor)
        operator_keys = config.gateway.operator_keys_file
        self._operators = Authenticator(operator_keys, log) if operator_keys else None
        self._ledger_parts = self._made_ledger_parts(config.gateway)
        cells = CellMetrics(self._core, config.served)
        collectors = (GatewayMetrics(self._core, config), cells, self._ledger_parts)
        self._exposition = Exposition(config, Role.GATEWAY, name, *collectors)
        self._adapter_asks = AdapterAsks(self._ask_router)
        self._handled = _handled_request(Path(config.fleet.run_dir), name, log)
        self._http = self._server(config.gateway, StreamOwners(Path(config.fleet.run_dir), name))
        self._curve = open_curve(config, log)
        self._workers: WorkerLinks | None = None
        #: Of each cell, by its name; of the fleet's own under the empty name if there are none.
        self._routers: dict[str, RouterLinks] = {}
        self._refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        #: Host and port; known after `start`.
        self.http_address = ("", 0)

    def _server(self, config: GatewayConfig, owners: StreamOwners) -> HttpServer:
        app, clock, log = self._app, self._clock, self._log
        vllm_names = VllmNames(self._core, self._models)
        guard = Guard(
            config,
            self._authenticator,
            self._operators,
            owners,
            ignored=app.ignored_fields,
            handled=self._handled,
            clock=clock,
            log=log,
        )
        about = AboutRoutes(
            app,
            config,
            lambda: self._exposition.text() + exposed(vllm_names),
            full_api=any(parts.full_api.is_served for parts in self._models.values()),
            adapters=self._adapter_asks,
        )
        apis = {served: parts.full_api for served, parts in self._models.items()}
        parsed = frozenset(n for n, parts in self._models.items() if parts.parses_chats)
        turns = self._ledger_parts.turns
        self._full_api = FullApiRoutes(
            apis, app, config, clock, parses_chats=parsed, responses=turns
        )
        return HttpServer(
            app,
            self._full_api,
            self._config,
            owners,
            guard=guard,
            other_routes=(*about.routes(), *self._ledger_parts.routes()),
            clock=clock,
            log=log,
        )

    def _made_ledger_parts(self, config: GatewayConfig) -> LedgerParts:
        holder = f"{self._name}|{self._incarnation}"
        return LedgerParts(
            config, holder=holder, answers=self._line_answers, clock=self._clock, log=self._log
        )

    def _line_answers(self) -> LineAnswers:
        return LineAnswers(self._app, self._full_api, self._authenticator, self._clock)

    @property
    def stop_seconds(self) -> float:
        return self._config.fleet.drain_ms / 1000 + CLOSE_SECONDS

    @property
    def core(self) -> CellsCore:
        return self._core

    @property
    def connection_limits(self) -> ConnectionLimits:
        """The counts of client connections."""
        return self._http.connection_limits

    @property
    def http_routes(self) -> list[tuple[str, str]]:
        """Method and path pattern of every route."""
        return self._http.routes

    @property
    def frames_dropped(self) -> int:
        """Frames of router and workers that were no message of the wire."""
        links = (*self._routers.values(), self._workers)
        return sum(link.dropped for link in links if link is not None)

    async def start(self, tasks: Tasks) -> str:
        address = stream_address(self._config, self._name)
        if self._curve is not None:
            self._curve.start()
            tasks.start("allow-list", self._curve.watch())
        self._workers = WorkerLinks(
            self._name, self._incarnation, address, self._handle, self._log, self._curve
        )
        self._workers.start()
        self._routers = {
            cell: self._links_to(cell, self._hello(self._workers.address))
            for cell in self._core.cells
        }
        for links in self._routers.values():
            links.start()
        tasks.start("tick", self._tick(self._workers))
        tasks.start("router-refusal", self._exit_if_refused())
        for parts in self._models.values():
            await parts.start()
        await self._ledger_parts.start(tasks)
        self.http_address = await self._http.start(
            self._certificate.context if self._certificate is not None else None
        )
        await self._exposition.start(tasks)
        tasks.watchdog_and_reload.refresh_on_sighup(self._reload)
        host, port = self.http_address
        scheme = "http" if self._certificate is None else "https"
        return f"gateway {self._name} listens on {scheme}://{host}:{port}"

    def _links_to(self, cell: str, hello: Hello) -> RouterLinks:
        addresses = cell_addresses(self._config, cell) if cell else control_addresses(self._config)
        return RouterLinks(
            hello,
            dials={name: Dial(at, self._curve) for name, at in addresses.items()},
            silence_seconds=self._config.gateway.router_silence_ms / 1000,
            clock=self._clock,
            handle=partial(self._handle, cell=cell),
            live=self._core.cells[cell].core.live,
            on_refused=self._on_refused,
            log=self._log,
        )

    def _hello(self, stream_endpoint: str) -> Hello:
        return Hello(
            wire_version=WIRE_VERSION,
            role=Role.GATEWAY,
            name=self._name,
            incarnation=self._incarnation,
            pid=os.getpid(),
            stream_endpoint=stream_endpoint,
        )

    async def stop(self) -> None:
        self._handle(DrainStarted())
        if self._config.gateway.processes > 1:
            self._http.stop_listening()
        for links in self._routers.values():
            links.leave()
        self._ledger_parts.stop_taking()
        await self._drain()
        await self._http.close()
        await self._ledger_parts.close()
        await self._exposition.close()
        for parts in self._models.values():
            parts.close()
        for links in self._routers.values():
            links.close()
        if self._workers is not None:
            self._workers.close()
        if self._curve is not None:
            self._curve.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def _active(self) -> int:
        """Live requests, and those whose answers are checked, written or sent."""
        return max(self._core.active, self._http.answering)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._config.fleet.drain_ms / 1000):
                while self._active:  # noqa: ASYNC110 - what it depends on has no event
                    await asyncio.sleep(TICK_SECONDS)
        except TimeoutError:
            left = self._active
            sentence = f"{left} requests were still running when the drain time ended"
            self._log.warning("drain.expired", active=left, sentence=sentence)
            self._handle(DrainExpired())

    def _handle(self, event: Event, *, cell: str = "") -> None:
        """Gives the core an event and carries out its actions; on the loop's thread only. `cell`:
        of the router that it comes from."""
        for action in self._core.handle(event, self._clock.monotonic(), cell):
            self._carry_out(action)
        if isinstance(event, Stepped):
            self._http.batcher.processed(len(event.deltas))
        elif isinstance(event, FromRouter) and isinstance(event.message, Fleet):
            self._on_fleet()
        elif isinstance(event, FromRouter) and isinstance(event.message, AdapterTold):
            self._adapter_asks.answered(event.message)

    def _ask_router(self, message: AskAdapter) -> bool:
        """Asks all cells that have a router. False: none has."""
        up = [cell for cell in self._core.cells.values() if cell.core.router_up]
        for cell in up:
            self._routers[cell.name].send(message)
        return bool(up)

    def _on_fleet(self) -> None:
        for parts in self._models.values():
            context = parts.model.known_context
            if context:
                parts.model.on_context()
                parts.full_api.set_context(context)

    def _carry_out(self, action: Action) -> None:
        match action:
            case ToRouter(message=message, body=body, cell=cell):
                if cell in self._routers:
                    self._routers[cell].send(message, encode(body) if body is not None else None)
            case ToWorker(worker=worker, message=message):
                if self._workers is not None:
                    self._workers.abort(worker, message)
            case Report(summary=summary, cell=cell):
                if cell in self._routers:
                    self._routers[cell].report(summary)
            case Note(event=event, sentence=sentence, request_id=request_id):
                self._log.info(event, sentence=sentence, request_id=request_id or None)

    def _reload(self) -> None:
        self._authenticator.refresh(force=True)
        if self._operators is not None:
            self._operators.refresh(force=True)
        self._refresh()

    def _refresh(self) -> None:
        self._authenticator.refresh()
        if self._operators is not None:
            self._operators.refresh()
        if self._certificate is not None:
            self._certificate.refresh()

    def _on_refused(self, reason: str) -> None:
        if not self._refused.done():
            self._refused.set_result(reason)

    async def _exit_if_refused(self) -> None:
        reason = await self._refused
        raise BatonError(Code.WIRE_MISMATCH, f"the router refused this gateway: {reason}")

    async def _tick(self, workers: WorkerLinks) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            ticks += 1
            self._handle(Tick())
            self._http.resumable.tick()
            self._http.memory_limit.measure()
            for links in self._routers.values():
                links.tick()
            if ticks % TICKS_PER_PING == 0:
                workers.ping(self._core.busy_workers())
            if ticks % TICKS_PER_BEAT == 0:
                for links in self._routers.values():
                    links.beat()
            if ticks % TICKS_PER_KEYS == 0:
                self._refresh()
            if ticks % TICKS_PER_PING_ALL == 0:
                workers.ping_all()


def _handled_request(run_dir: Path, name: str, log: Logger) -> HandledRequest:
    """Logs what the process before this one did not get over. Raises ConfigError."""
    path = handled_path(run_dir, name)
    try:
        handled = HandledRequest(path)
    except OSError as error:
        raise ConfigError("fleet.run_dir", f"{path}: {error.strerror or error}") from error
    if handled.before:
        sentence = f"the process before this one ended while it handled {handled.before}"
        log.warning("request.fatal", sentence=sentence)
    return handled

"""What a gateway needs of one of its models: its text, its helpers, and how long a sequence may
be."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from common.messages import ServedAdapter
from common.model.adapters import name_of_adapter
from services.gateway.api.intake import Intake
from services.gateway.api.response_bodies import models_body
from services.gateway.api.routes import Route, check_task
from services.gateway.helper.pool import HelperPool
from services.gateway.requests.port import CoreView
from services.gateway.requests.refusals import RETRY_SOON_MS, unreachable
from services.gateway.text.port import TextPort


class ServedModel:
    """`config` is that of the model (`Config.of_model`). `root`: what /v1/models gives as the place
    of its files. `helpers` prepare large bodies for it."""

    def __init__(
        self,
        config: Config,
        core: CoreView,
        text: TextPort,
        *,
        root: str,
        helpers: HelperPool,
        clock: Clock,
    ) -> None:
        self.name = config.model.served_name
        #: The names by which clients may ask for it.
        self.names = (self.name, *config.model.aliases)
        self.text = text
        self.helpers = helpers
        self.intake = Intake(config, text, clock, self.context)
        self._config = config
        self._core = core
        self._root = root
        self._created = clock.unix_ms() // 1000
        self._context_known = asyncio.Event()

    def check_route(self, route: Route) -> None:
        """Raises BatonError(INVALID_REQUEST) where this model is for something else."""
        check_task(self.name, self._config.model.task, route)

    @property
    def reason(self) -> str:
        """Why the fleet cannot serve it; empty when it can."""
        fleet = self._core.fleet_of(self.name)
        if fleet is None:
            return "the router has not reported the fleet yet"
        return "" if fleet.ready else fleet.reason or "no decode worker is ready"

    @property
    def known_context(self) -> int:
        """The longest sequence that the fleet takes of it, in tokens; 0 = it is not known. Where
        the first worker is started for the first request, the fleet file's counts until then."""
        fleet = self._core.fleet_of(self.name)
        if fleet is None:
            return 0
        return fleet.max_model_len or (self._config.model.max_model_len if fleet.ready else 0)

    def on_context(self) -> None:
        """The core knows the longest sequence that the fleet takes of it."""
        self._context_known.set()

    @property
    def adapters(self) -> dict[str, ServedAdapter]:
        """The LoRA adapters that decode workers have, by name."""
        fleet = self._core.fleet_of(self.name)
        found = fleet.adapters if fleet is not None else ()
        return {name_of_adapter(adapter.id): adapter for adapter in found}

    def cards(self) -> list[dict[str, Any]]:
        """Its entries of /v1/models, one for each of its names and of its adapters."""
        fleet = self._core.fleet_of(self.name)
        about = (self._created, (fleet.max_model_len if fleet is not None else 0) or None)
        names = [models_body(name, self._root, *about) for name in self.names]
        adapters = self.adapters.items()
        return names + [models_body(n, one.path, *about, self.name) for n, one in adapters]

    async def context(self) -> int:
        """The longest sequence that the fleet takes of it, in tokens. Waits up to `router_wait_ms`
        until it is known. Raises BatonError(ROUTER_UNREACHABLE | NO_CAPACITY)."""
        if not self._context_known.is_set():
            try:
                async with asyncio.timeout(self._config.gateway.router_wait_ms / 1000):
                    await self._context_known.wait()
            except TimeoutError:
                if not self._core.router_up:
                    raise unreachable() from None
                raise BatonError(
                    Code.NO_CAPACITY,
                    f"the fleet cannot serve yet: {self.reason}",
                    retry_after_ms=RETRY_SOON_MS,
                ) from None
        return self.known_context


class _Asked(msgspec.Struct):
    """The field of a body that says which model is asked for."""

    model: str | None = None


def asked_model(body: bytes) -> str | None:
    """The model that a body names. None: it names none, or is no good; who parses it says so."""
    try:
        return msgspec.json.decode(body, type=_Asked).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None

"""All that a gateway makes for one of its models: helpers, checks of bodies, and the full API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from common.clock import Clock
from common.config import Config
from common.model.resolve import model_folder
from common.telemetry.log import Logger
from services.gateway.full_api.lazy import LazyApi
from services.gateway.full_api.pooling import PoolingApi
from services.gateway.full_api.port import Checks, FullApi
from services.gateway.full_api.vllm.build import build
from services.gateway.helper.bodies import BodyChecks
from services.gateway.helper.grammars import Grammars
from services.gateway.helper.image_fetcher import ImageFetcher
from services.gateway.helper.pool import HelperPool
from services.gateway.http.app import App
from services.gateway.http.served_model import ServedModel
from services.gateway.requests.port import CoreView
from services.gateway.text.port import TextPort


class ModelParts:
    """`config` is that of the model (`Config.of_model`). `add_full_api` completes it."""

    full_api: LazyApi

    def __init__(
        self, config: Config, text: TextPort, root: str, core: CoreView, clock: Clock, log: Logger
    ) -> None:
        self._config = config
        self._root = root
        self._clock = clock
        self._log = log
        self._takes_images = text.takes_images
        self._helpers = HelperPool(config, "vllm", log)
        #: Where plain text alone has been asked for, helpers need not import vLLM.
        self._light_helpers = (
            self._helpers if config.gateway.text == "vllm" else HelperPool(config, "light", log)
        )
        self.model = ServedModel(
            config, core, text, root=root, helpers=self._light_helpers, clock=clock
        )

    def add_full_api(self, app: App, executor: Executor) -> None:
        config = self._config
        bodies = BodyChecks(
            self._helpers,
            self._light_helpers,
            config.gateway.limits,
            self.model.context,
            ImageFetcher(config.gateway).fetch,
        )
        self.full_api = LazyApi(
            self._loader(app, bodies),
            executor,
            self._clock,
            self._log,
            check_shape=bodies.check_shape,
            on_load=self._helpers.begin,
            wait_seconds=config.gateway.token_wait_ms_max / 1000,
        )

    @property
    def parses_chats(self) -> bool:
        """Whether no chat is served without vLLM's classes."""
        reasons = bool(self._config.model.reasoning_parser)
        return reasons or (self._takes_images and self.full_api.is_served)

    async def start(self) -> None:
        """Loads what must be there before the gateway is ready."""
        model = self._config.model
        if self._config.gateway.text == "vllm" or model.reasoning_parser or model.pools:
            await asyncio.gather(self.full_api.ready(), self._helpers.start())

    def close(self) -> None:
        self._helpers.close()
        self._light_helpers.close()

    def _loader(self, app: App, bodies: BodyChecks) -> Callable[[], FullApi] | None:
        """What loads the full API; None where only plain text is served."""
        config = self._config
        if config.gateway.text == "light":
            return None
        grammars = Grammars(self._helpers, config.gateway.limits)
        checks = Checks(grammars.check, bodies.check, bodies.answer)
        if config.model.pools:
            name = config.model.served_name
            return lambda: PoolingApi(name, checks, app.open_with, app.close)
        folder, root = model_folder(config), self._root
        return lambda: build(config, folder, root, checks, app.open_with, app.close)

"""The whole API, loaded when it is first wanted.

`gateway.text = "auto"`: plain text is served at once by our own path, and the first request that
needs more waits while vLLM's text classes are imported on a thread (some 8 s, 600 MiB); a gateway
that nobody asks for more never pays. "vllm": loaded before the gateway says that it is ready, for a
first request as fast as the others. "light": never; what needs it is refused by name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Executor

from common.clock import Clock
from common.errors import BatonError, Code
from common.log import Logger
from services.gateway.api.routes import Route
from services.gateway.api.whole import Asking, Events, Whole, WholeApi
from services.gateway.api.whole_fields import HONOURED

LIGHT_HINT = 'this gateway serves plain text only; gateway.text = "auto" or "vllm" serves the rest'


def plain_refusal(route: Route, error: BatonError) -> BatonError:
    """What the plain path says of a field, with a hint where the whole API would honour it."""
    name = re.split(r"[.\[]", error.param or "")[0]
    if error.code is not Code.UNSUPPORTED_PARAMETER or name not in HONOURED[route]:
        return error
    return BatonError(error.code, f"{error.message}; {LIGHT_HINT}", param=error.param)


class LazyApi:
    """`load` blocks, and raises BatonError when there is no such API here; asked once."""

    def __init__(
        self,
        load: Callable[[], WholeApi] | None,
        executor: Executor,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._load = load
        self._executor = executor
        self._clock = clock
        self._log = log
        self._loading: asyncio.Future[WholeApi] | None = None

    @property
    def is_served(self) -> bool:
        return self._load is not None

    async def ready(self) -> WholeApi:
        """Raises BatonError(UNSUPPORTED_PARAMETER) where text is "light", ConfigError when vLLM
        cannot be used."""
        if self._load is None:
            raise BatonError(Code.UNSUPPORTED_PARAMETER, LIGHT_HINT)
        if self._loading is None:
            loop = asyncio.get_running_loop()
            self._loading = loop.run_in_executor(self._executor, self._loaded, self._load)
        return await asyncio.shield(self._loading)

    async def ask(self, asking: Asking) -> Whole | Events:
        try:
            api = await self.ready()
        except BatonError as error:
            if error.code is not Code.CONFIG_INVALID:
                raise
            raise BatonError(Code.UNSUPPORTED_PARAMETER, error.message) from error
        return await api.ask(asking)

    def end(self, asking: Asking, reason: str) -> None:
        if self._loading is not None and self._loading.done() and not self._loading.exception():
            self._loading.result().end(asking, reason)

    def _loaded(self, load: Callable[[], WholeApi]) -> WholeApi:
        began = self._clock.monotonic()
        try:
            api = load()
        except BatonError as error:
            self._log.error("text.unusable", sentence=error.message)
            raise
        seconds = self._clock.monotonic() - began
        sentence = f"vLLM's text classes are loaded, after {seconds:.1f} s"
        self._log.info("text.loaded", sentence=sentence)
        return api

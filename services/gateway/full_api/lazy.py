"""The full API, loaded when it is first needed.

With `gateway.text = "auto"` our own path serves plain text at once. The first good request that
needs more waits while vLLM's text classes are imported on a thread (some 8 s, 600 MiB), beside the
streams that run (`vllm/quiet.py`); a gateway that never gets such a request never pays for them,
and one of bad shape is refused before. With "vllm" they are loaded before the gateway is
ready, so that the first request is as fast as the others. With "light" they are never loaded, and
requests that need them are refused by name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from common.clock import Clock
from common.errors import BatonError, Code
from common.telemetry.log import Logger
from services.gateway.api.routes import Route
from services.gateway.full_api.fields import HONOURED
from services.gateway.full_api.port import ApiRequest, EventReply, FullApi, JsonReply

LIGHT_HINT = 'this gateway serves plain text only; gateway.text = "auto" or "vllm" serves the rest'


def plain_refusal(route: Route, error: BatonError) -> BatonError:
    """The plain path's refusal, with a hint where the full API would honour the field."""
    name = re.split(r"[.\[]", error.param or "")[0]
    if error.code is not Code.UNSUPPORTED_PARAMETER or name not in HONOURED[route]:
        return error
    return BatonError(error.code, f"{error.message}; {LIGHT_HINT}", param=error.param)


class LazyApi:
    """`load` blocks, and raises BatonError when the API cannot be used here. It is called at most
    once; None: the API is not served. A request waits for it `wait_seconds` at most, and before
    that `check_shape` raises BatonError for what can be seen to be wrong with it. `on_load` is
    called when the loading begins."""

    def __init__(
        self,
        load: Callable[[], FullApi] | None,
        executor: Executor,
        clock: Clock,
        log: Logger,
        *,
        check_shape: Callable[[ApiRequest], Awaitable[None]],
        on_load: Callable[[], object],
        wait_seconds: float,
    ) -> None:
        self._on_load = on_load
        self._check_shape = check_shape
        self._wait_seconds = wait_seconds
        self._load = load
        self._executor = executor
        self._clock = clock
        self._log = log
        self._loading: asyncio.Future[FullApi] | None = None
        #: The longest sequence that the fleet takes, in tokens; 0: not known yet.
        self._context = 0

    @property
    def is_served(self) -> bool:
        return self._load is not None

    async def ready(self) -> FullApi:
        """Raises BatonError(UNSUPPORTED_PARAMETER) where text is "light", ConfigError when vLLM
        cannot be used."""
        if self._load is None:
            raise BatonError(Code.UNSUPPORTED_PARAMETER, LIGHT_HINT)
        if self._loading is None:
            self._on_load()
            loop = asyncio.get_running_loop()
            self._loading = loop.run_in_executor(self._executor, self._loaded, self._load)
            self._loading.add_done_callback(lambda _: self._pass_context())
        return await asyncio.shield(self._loading)

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        if self.is_served and self._api is None:
            await self._check_shape(api_request)
        try:
            async with asyncio.timeout(self._wait_seconds):
                api = await self.ready()
        except TimeoutError:
            sentence = f"vLLM's text classes are not loaded after {self._wait_seconds:g} s"
            raise BatonError(Code.NO_CAPACITY, sentence) from None
        except BatonError as error:
            if error.code is not Code.CONFIG_INVALID:
                raise
            raise BatonError(Code.UNSUPPORTED_PARAMETER, error.message) from error
        return await api.answer(api_request)

    async def check_shape(self, api_request: ApiRequest) -> None:
        """What can be seen to be wrong with a request that is answered later. Raises BatonError."""
        if not self.is_served:
            raise BatonError(Code.UNSUPPORTED_PARAMETER, LIGHT_HINT)
        await self._check_shape(api_request)

    def end(self, api_request: ApiRequest, reason: str) -> None:
        api = self._api
        if api is not None:
            api.end(api_request, reason)

    def set_context(self, tokens: int) -> None:
        """`tokens`: the longest sequence that the fleet takes; passed on when it changes."""
        if tokens != self._context:
            self._context = tokens
            self._pass_context()

    @property
    def _api(self) -> FullApi | None:
        """None before it is loaded, and where it cannot be."""
        loading = self._loading
        if loading is None or not loading.done() or loading.exception():
            return None
        return loading.result()

    def _pass_context(self) -> None:
        api = self._api
        if api is not None and self._context:
            api.set_context(self._context)

    def _loaded(self, load: Callable[[], FullApi]) -> FullApi:
        began = self._clock.monotonic()
        try:
            api = load()
        except BatonError as error:
            self._log.error("text.failed", sentence=error.message)
            raise
        seconds = self._clock.monotonic() - began
        sentence = f"vLLM's text classes are loaded, after {seconds:.1f} s"
        self._log.info("text.loaded", sentence=sentence)
        return api

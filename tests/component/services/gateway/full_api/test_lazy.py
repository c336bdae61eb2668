"""When the full API is loaded, and what is said where there is none."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from common.clock import ManualClock
from common.errors import BatonError, Code, ConfigError
from services.gateway.api.routes import Route
from services.gateway.full_api.lazy import LIGHT_HINT, LazyApi, plain_refusal
from services.gateway.full_api.port import ApiRequest, EventReply, FullApi, JsonReply, Origin

LOG = structlog.get_logger("test")
REQUEST = ApiRequest(Route.CHAT, b"{}", Origin("r"))


class FakeApi:
    def __init__(self) -> None:
        self.ended: list[str] = []
        self.contexts: list[int] = []

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        return JsonReply(api_request.body)

    def set_context(self, tokens: int) -> None:
        self.contexts.append(tokens)

    def end(self, api_request: ApiRequest, reason: str) -> None:
        self.ended.append(reason)


async def good(_: ApiRequest) -> None:
    """Every shape is."""


def lazy_api(
    load: Callable[[], FullApi] | None,
    executor: ThreadPoolExecutor,
    *,
    check_shape: Callable[[ApiRequest], Awaitable[None]] = good,
    on_load: Callable[[], object] = lambda: None,
    wait_seconds: float = 10.0,
) -> LazyApi:
    return LazyApi(
        load,
        executor,
        ManualClock(),
        LOG,
        check_shape=check_shape,
        on_load=on_load,
        wait_seconds=wait_seconds,
    )


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


async def test_it_is_loaded_once_and_only_when_asked(executor: ThreadPoolExecutor) -> None:
    loads: list[FakeApi] = []

    def load() -> FakeApi:
        loads.append(FakeApi())
        return loads[-1]

    lazy = lazy_api(load, executor)
    lazy.end(REQUEST, "gone")
    assert not loads
    for _ in range(2):
        assert await lazy.answer(REQUEST) == JsonReply(b"{}")
    assert len(loads) == 1
    lazy.end(REQUEST, "gone")
    assert loads[0].ended == ["gone"]


async def test_a_bad_shape_is_refused_before_anything_is_loaded(
    executor: ThreadPoolExecutor,
) -> None:
    begun: list[str] = []

    async def check_shape(api_request: ApiRequest) -> None:
        if api_request is not REQUEST:
            raise BatonError(Code.INVALID_REQUEST, "input[0] must be an object")

    def load() -> FakeApi:
        begun.append("load")
        return FakeApi()

    lazy = lazy_api(
        load, executor, check_shape=check_shape, on_load=lambda: begun.append("helpers")
    )
    bad = ApiRequest(Route.RESPONSES, b"{}", Origin("bad"))
    for _ in range(2):
        with pytest.raises(BatonError, match="must be an object"):
            await lazy.answer(bad)
    assert begun == []
    for _ in range(2):
        await lazy.answer(REQUEST)
    assert begun == ["helpers", "load"]
    assert await lazy.answer(bad) == JsonReply(b"{}"), "a helper that has all of vLLM checks it"


async def test_the_fleets_length_is_passed_on_when_loaded_and_when_it_changes(
    executor: ThreadPoolExecutor,
) -> None:
    api = FakeApi()
    lazy = lazy_api(lambda: api, executor)
    lazy.set_context(10)
    await lazy.answer(REQUEST)
    for tokens in (10, 20, 20):
        lazy.set_context(tokens)
    await lazy.answer(REQUEST)
    assert api.contexts == [10, 20]


async def test_light_refuses_and_names_the_setting(executor: ThreadPoolExecutor) -> None:
    lazy = lazy_api(None, executor)
    assert not lazy.is_served
    with pytest.raises(BatonError) as refused:
        await lazy.answer(REQUEST)
    assert refused.value.code is Code.UNSUPPORTED_PARAMETER
    assert "gateway.text" in refused.value.message


def test_the_plain_path_hints_at_what_the_full_api_honours() -> None:
    def message_of(param: str | None, code: Code = Code.UNSUPPORTED_PARAMETER) -> str:
        return plain_refusal(Route.CHAT, BatonError(code, "no", param=param)).message

    assert message_of("tools") == message_of("messages[0].tool_calls") == f"no; {LIGHT_HINT}"
    assert message_of("mood") == message_of(None) == message_of("n", Code.INVALID_REQUEST) == "no"


async def test_what_cannot_be_loaded_is_the_operators_matter(executor: ThreadPoolExecutor) -> None:
    def load() -> FakeApi:
        raise ConfigError("gateway.text", "vLLM cannot be imported here")

    lazy = lazy_api(load, executor)
    with pytest.raises(BatonError) as refused:
        await lazy.answer(REQUEST)
    assert refused.value.http.status == 400
    assert "cannot be imported" in refused.value.message
    with pytest.raises(ConfigError):
        await lazy.ready()
    lazy.end(REQUEST, "gone")


async def test_a_request_does_not_wait_for_ever_until_it_is_loaded(
    executor: ThreadPoolExecutor,
) -> None:
    loads = threading.Event()

    def load() -> FakeApi:
        loads.wait()
        return FakeApi()

    lazy = lazy_api(load, executor, wait_seconds=0.01)
    with pytest.raises(BatonError, match="not loaded after") as raised:
        await lazy.answer(REQUEST)
    assert raised.value.code is Code.NO_CAPACITY
    loads.set()
    await lazy.ready()
    assert await lazy.answer(REQUEST) == JsonReply(b"{}")

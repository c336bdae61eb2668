"""When the whole API is loaded, and what is said where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from common.clock import ManualClock
from common.errors import BatonError, Code, ConfigError
from services.gateway.api.lazy import LIGHT_HINT, LazyApi, plain_refusal
from services.gateway.api.routes import Route
from services.gateway.api.whole import Asking, Events, Origin, Whole

LOG = structlog.get_logger("test")
ASKING = Asking(Route.CHAT, b"{}", Origin("r"), context=10)


class FakeApi:
    def __init__(self) -> None:
        self.ended: list[str] = []

    async def ask(self, asking: Asking) -> Whole | Events:
        return Whole(asking.body)

    def end(self, asking: Asking, reason: str) -> None:
        self.ended.append(reason)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


async def test_it_is_loaded_once_and_only_when_asked(executor: ThreadPoolExecutor) -> None:
    loads: list[FakeApi] = []

    def load() -> FakeApi:
        loads.append(FakeApi())
        return loads[-1]

    lazy = LazyApi(load, executor, ManualClock(), LOG)
    lazy.end(ASKING, "gone")
    assert not loads
    for _ in range(2):
        assert await lazy.ask(ASKING) == Whole(b"{}")
    assert len(loads) == 1
    lazy.end(ASKING, "gone")
    assert loads[0].ended == ["gone"]


async def test_light_refuses_and_names_the_setting(executor: ThreadPoolExecutor) -> None:
    lazy = LazyApi(None, executor, ManualClock(), LOG)
    assert not lazy.is_served
    with pytest.raises(BatonError) as refused:
        await lazy.ask(ASKING)
    assert refused.value.code is Code.UNSUPPORTED_PARAMETER
    assert "gateway.text" in refused.value.message


def test_the_plain_path_hints_at_what_the_whole_api_honours() -> None:
    def said(param: str | None, code: Code = Code.UNSUPPORTED_PARAMETER) -> str:
        return plain_refusal(Route.CHAT, BatonError(code, "no", param=param)).message

    assert said("tools") == said("messages[0].tool_calls") == f"no; {LIGHT_HINT}"
    assert said("mood") == said(None) == said("n", Code.INVALID_REQUEST) == "no"


async def test_what_cannot_be_loaded_is_the_operators_matter(executor: ThreadPoolExecutor) -> None:
    def load() -> FakeApi:
        raise ConfigError("gateway.text", "vLLM cannot be imported here")

    lazy = LazyApi(load, executor, ManualClock(), LOG)
    with pytest.raises(BatonError) as refused:
        await lazy.ask(ASKING)
    assert refused.value.face.http_status == 400
    assert "cannot be imported" in refused.value.message
    with pytest.raises(ConfigError):
        await lazy.ready()
    lazy.end(ASKING, "gone")

"""Fixtures of the gateway's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
import uvloop

from common.clock import SystemClock
from common.config import from_mapping
from common.process.lifecycle import Tasks
from common.security.api_keys import KeyRecord, edited, new_key
from services.gateway.daemon import Gateway
from services.gateway.text.light import LightText
from tests.component.services.gateway.rig import FakeRouter, MakeRig, Rig
from tests.rigs.light_text import light, model_folder

__all__ = ["light", "make_rig", "model_folder", "rig"]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As in production: transports behave differently on asyncio's own loop."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def make_rig(tmp_path: Path, light: LightText) -> AsyncIterator[MakeRig]:
    """`make_rig(max_model_len=..., drain_ms=..., reasoning_parser=..., **gateway settings)`."""
    rigs: list[Rig] = []

    async def make(
        max_model_len: int = 4096,
        drain_ms: float = 0.0,
        reasoning_parser: str = "",
        models: dict[str, Any] | None = None,
        **gateway: Any,
    ) -> Rig:
        """`models`: as in the fleet file, in place of the one."""
        one = {"model": {"name": "m", "reasoning_parser": reasoning_parser}}
        config = from_mapping(
            {
                "fleet": {"run_dir": str(tmp_path), "drain_ms": drain_ms},
                "gateway": {"port": 0, "text": "light", **gateway},
                **(one if models is None else {"models": models}),
            }
        )
        texts, roots = dict.fromkeys(config.served, light), dict.fromkeys(config.served, "/model")
        router = FakeRouter(config, max_model_len)
        tasks = Tasks()
        log = structlog.get_logger("test")
        daemon = Gateway(config, "g0", texts, roots, SystemClock(), log)
        await daemon.start(tasks)
        host, port = daemon.http_address
        rig = Rig(config, daemon, tasks, aiohttp.ClientSession(), f"http://{host}:{port}", router)
        rigs.append(rig)
        return rig

    yield make
    for rig in rigs:
        await rig.close()


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    """With one key that nobody has."""
    _, key_id, sha256 = new_key()
    path = tmp_path / "keys.json"
    with edited(path) as records:
        records.append(KeyRecord(id=key_id, sha256=sha256, tenant="t"))
    return str(path)


@pytest.fixture
async def rig(make_rig: MakeRig) -> Rig:
    return await make_rig()

"""A defect of the core ends the daemon, whatever it raises; it must not leave a wedge behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.errors import BatonError, Code
from common.messages import Role
from tests.component.services.router.daemon_rig import running
from tests.rigs.messages import hello
from tests.rigs.peers import WAIT_SECONDS


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("y"), BatonError(Code.INTERNAL, "z")])
async def test_any_exception_of_the_core_ends_the_process_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def breaks(*_: object) -> None:
        raise error

    async def poisoned() -> None:
        async with running(tmp_path) as live:
            with monkeypatch.context() as patch:
                patch.setattr(live.router._core, "handle", breaks)
                gateway = await live.peer("g0|1")
                gateway.send(hello(Role.GATEWAY, "g0", "1", stream_endpoint="ipc://x"))
                async with asyncio.timeout(WAIT_SECONDS):
                    await asyncio.shield(live.tasks.failed)

    with pytest.raises(AssertionError, match="the router core is broken"):
        await poisoned()

"""Workers with both cores over simulated engines, under a real router: they change their role and
hand real KV over in it. The test plays the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from common.config import Config, from_mapping
from common.engine.sim.engine import SimEngine, open_sim
from common.messages import (
    WIRE_VERSION,
    Hello,
    RequestBody,
    Role,
    RouterToGateway,
    Sampling,
    Tokens,
    Welcome,
)
from common.net.admin_client import ask
from common.net.endpoints import STREAM, admin_address, control_address
from common.net.wire import encode, pack_ids
from common.process.lifecycle import Tasks
from services.decode.core import DecodeCore
from services.router.daemon import make as make_router
from services.worker import make as make_worker
from tests.rigs.messages import hello, submit
from tests.rigs.peers import WAIT_SECONDS, Peer

ROLES = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
CHANGES = (
    ("d0", Role.PREFILL),
    ("p0", Role.DECODE),
    ("p1", Role.DECODE),
    ("d1", Role.PREFILL),
    ("d0", Role.DECODE),
)
PROMPT = [40 + n % 60 for n in range(400)]
TOKENS = 24
IDLE_SECONDS = 1.0
LOG = structlog.get_logger("test")


@dataclass
class Fleet:
    """A router and the workers of `ROLES` in this loop, and the gateway that the test plays."""

    config: Config
    engines: list[SimEngine]
    control: Peer
    stream: Peer
    served: int = 0

    def handoffs(self) -> int:
        """How often KV came from another worker, as the KV planes say."""
        found = [engine.kv_status() for engine in self.engines]
        return sum(status.counts.handoffs_in for status in found if status is not None)

    async def rows(self) -> dict[str, dict[str, Any]]:
        answer = await ask(admin_address(self.config), "workers", {}, 5.0)
        return {row["name"]: row for row in answer.result}

    async def until(self, roles: dict[str, Role]) -> None:
        """All workers are ready, in these roles."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                rows = await self.rows()
                now = {name: row["role"] for name, row in rows.items() if row["state"] == "ready"}
                if now == {name: role.value for name, role in roles.items()}:
                    return
                await asyncio.sleep(0.01)

    async def busy(self) -> list[str]:
        """Decode workers that have a request."""
        rows = await self.rows()
        return [name for name, row in rows.items() if row["role"] == "decode" and row["requests"]]

    async def order(self, name: str, role: Role) -> Any:
        answer = await ask(admin_address(self.config), "role", {"worker": name, "role": role}, 5.0)
        assert answer.ok, answer.error
        return answer.result

    def begin(self) -> str:
        self.served += 1
        request_id = f"r{self.served}"
        body = RequestBody(
            prompt_ids=pack_ids(PROMPT),
            sampling=Sampling(max_tokens=TOKENS, temperature=0.0, ignore_eos=True),
        )
        asked = submit(request_id, prompt_tokens=len(PROMPT), max_tokens=TOKENS)
        self.control.send(asked, encode(body))
        return request_id

    async def finish(self, request_id: str) -> list[int]:
        """Its tokens, once all have come. Raises AssertionError if it ends otherwise."""
        got: list[int] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                message = await self.stream.next(Tokens, Hello)
                if isinstance(message, Hello):
                    self.stream.send(Welcome(wire_version=WIRE_VERSION, name="g0", incarnation="1"))
                    continue
                assert isinstance(message, Tokens)
                for delta in message.deltas:
                    assert not delta.error, delta
                    got += delta.token_ids if delta.request_id == request_id else []
                    if delta.request_id == request_id and delta.finish_reason:
                        return got


@asynccontextmanager
async def fleet(run_dir: Path) -> AsyncIterator[Fleet]:
    sim = {"engine": {"kind": "sim"}}
    config = from_mapping(
        {
            "fleet": {"run_dir": str(run_dir), "drain_ms": 500},
            "router": {"remote_prefill": "always", "liveness": {"rebuild_ms": 0}},
            "prefill": {name: sim for name, role in ROLES.items() if role is Role.PREFILL},
            "decode": {name: sim for name, role in ROLES.items() if role is Role.DECODE},
        }
    )
    tasks, of_workers = Tasks(), Tasks()
    router = make_router(config, "r0", LOG)
    await router.start(tasks)
    daemons, engines = [], []
    for name, role in ROLES.items():
        engines.append(open_sim(config.of_worker(role, name), role, name, "1"))
        daemons.append(make_worker(config, role, name, "1", engines[-1], LOG))
        await daemons[-1].start(of_workers)
    endpoint = f"ipc://{run_dir}/stream"
    stream = Peer(endpoint, Hello | Tokens, STREAM)
    control = Peer(control_address(config), RouterToGateway, identity="g0|1")
    await control.up()
    control.send(hello(Role.GATEWAY, "g0", "1", stream_endpoint=endpoint))
    made = Fleet(config, engines, control, stream)
    try:
        await made.until(ROLES)
        yield made
        for some in (tasks, of_workers):
            assert not some.failed.done(), some.failed.result()
    finally:
        control.close()
        stream.close()
        await of_workers.cancel_all()
        for daemon in daemons:
            await daemon.stop()
        await router.stop()
        await tasks.cancel_all()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path) as there:
        yield there


async def test_idle_workers_change_both_ways_and_hand_over_kv_in_each_role(running: Fleet) -> None:
    expected = await running.finish(running.begin())
    assert len(expected) == TOKENS
    roles, took = dict(ROLES), []
    for name, role in CHANGES:
        roles[name] = role
        began = time.monotonic()
        await running.order(name, role)
        await running.until(roles)
        took.append(time.monotonic() - began)
        assert await running.finish(running.begin()) == expected
    print("seconds of each change, idle:", [round(seconds, 3) for seconds in took])
    assert max(took) <= IDLE_SECONDS
    async with asyncio.timeout(WAIT_SECONDS):
        while running.handoffs() <= len(took):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_stream_that_nobody_else_can_take_ends_before_its_worker_changes(
    running: Fleet,
) -> None:
    """The gateway of this test resumes nothing, so the stream stays."""
    expected = await running.finish(running.begin())
    request_id = running.begin()
    async with asyncio.timeout(WAIT_SECONDS):
        while not (busy := await running.busy()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    told = await running.order(busy[0], Role.PREFILL)
    assert told["becomes"] in ("prefill", "")
    assert await running.finish(request_id) == expected
    await running.until(ROLES | {busy[0]: Role.PREFILL})


async def test_a_decode_worker_that_drafts_counts_a_draft_and_one_token_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Mock(wraps=DecodeCore)
    monkeypatch.setattr("services.worker.DecodeCore", made)
    drafts = {"engine": {"kind": "sim"}, "speculation": {"method": "ngram", "tokens": 3}}
    config = from_mapping({"fleet": {"run_dir": str(tmp_path)}, "decode": {"d0": drafts}})
    own = config.of_worker(Role.DECODE, "d0")
    engine = open_sim(own, Role.DECODE, "d0", "1")
    try:
        make_worker(own, Role.DECODE, "d0", "1", engine, LOG)
    finally:
        await engine.close()
    assert made.call_args.kwargs["step_tokens"] == 4

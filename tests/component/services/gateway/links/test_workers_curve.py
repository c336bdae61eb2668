"""The stream socket with keys: tokens come from the hosts that may send them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from common.messages import GatewayToDecode, Refused, Role, Welcome
from common.net.wire import Decoder, encode
from services.gateway.links.workers import WorkerLinks
from services.gateway.requests.events import Event, WorkerUp
from tests.component.common.security.curve_rig import ANY_PORT, Hosts
from tests.rigs.messages import worker_hello
from tests.rigs.peers import Peer


class Rig:
    def __init__(self, folder: Path) -> None:
        self.hosts = Hosts(folder, "gateway", "one", "two")
        self.hosts.keys.add("two", None, ["decode", "prefill"])
        self.events: list[Event] = []
        log = structlog.get_logger("test")
        curve = self.hosts.curve("gateway")
        self.links = WorkerLinks("g0", "1", ANY_PORT, self.events.append, log, curve)
        self.links.start()
        self._decoder: Decoder[GatewayToDecode] = Decoder(GatewayToDecode)

    async def welcomed(self, host: str, identity: str) -> Peer | None:
        end = self.hosts.end(self.hosts.curve(host), identity, connect=self.links.address)
        await end.up()
        name, _, incarnation = identity.partition("|")
        end.socket.send([encode(worker_hello(Role.DECODE, name, incarnation))])
        while True:
            message = self._decoder.decode((await end.hear())[0])
            if isinstance(message, Welcome | Refused):
                return end if isinstance(message, Welcome) else None


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.links.close()
    made.hosts.close()


async def test_another_host_does_not_stream_under_a_live_workers_name(rig: Rig) -> None:
    own = await rig.welcomed("one", "d0|1")
    assert own is not None
    assert await rig.welcomed("two", "d0|2") is None
    assert await rig.welcomed("two", "d1|1") is not None
    assert await rig.welcomed("one", "d0|3") is not None
    assert rig.events == [WorkerUp(b"d0|1"), WorkerUp(b"d1|1"), WorkerUp(b"d0|3")]


async def test_the_name_is_free_once_its_connection_is_gone(rig: Rig) -> None:
    own = await rig.welcomed("one", "d0|1")
    assert own is not None
    own.socket.close()
    async with asyncio.timeout(10.0):
        while await rig.welcomed("two", "d0|2") is None:
            pass


async def test_an_entry_without_the_role_does_not_stream(rig: Rig) -> None:
    rig.hosts.keys.add("two", None, ["prefill"])
    rig.hosts.curves[0].refresh()
    assert await rig.welcomed("two", "d0|1") is None
    assert not rig.events

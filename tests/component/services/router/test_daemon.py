"""The daemon's shell: real sockets, wrong frames, crashes found by disconnect, the drain."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.messages import (
    Beat,
    Decode,
    Ended,
    Failed,
    Fleet,
    Load,
    Placed,
    Refused,
    Role,
    Welcome,
)
from common.net.admin_client import ask
from common.net.wire import encode
from services.router.events import Received
from services.router.records.states import AttemptState
from tests.component.services.router.daemon_rig import Running, running
from tests.rigs.messages import hello, submit, worker_hello
from tests.rigs.peers import Peer

SUBMIT = submit()


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as router:
        yield router


async def joined(live: Running) -> tuple[Peer, Peer]:
    gateway, decode = await live.peer("g0|1"), await live.peer("d0|1")
    gateway.send(hello(Role.GATEWAY, "g0", "1", stream_endpoint="ipc://x"))
    await gateway.next(Welcome)
    decode.send(worker_hello(Role.DECODE, "d0"))
    await decode.next(Welcome)
    decode.send(Beat(load=Load()))
    while not (await gateway.next(Fleet)).ready:
        pass
    return gateway, decode


async def dropped(live: Running) -> dict[str, int]:
    counted: dict[str, int] = (await ask(live.admin, "status")).result["dropped"]
    return counted


async def test_a_crash_is_found_by_disconnect_long_before_the_timeout(tmp_path: Path) -> None:
    async with running(tmp_path, worker_timeout_ms=600_000.0) as live:
        gateway, decode = await joined(live)
        gateway.send(SUBMIT, b"body")
        await gateway.next(Placed)
        await decode.next(Decode)
        decode.close()
        failed = await gateway.next(Failed)
        assert (failed.request_id, failed.code) == ("r1", "worker_lost")
        assert "its connection closed" in failed.message
        assert (await gateway.next(Fleet)).ready is False


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([b"\xff\xff"], "bad frame"),
        ([b""], "bad frame"),
        ([b"[" * 100_000], "bad frame"),
        (
            [encode(Placed(request_id="r", attempt=1, decode="d", decode_incarnation="1"))],
            "bad frame",
        ),
        ([encode(Welcome(wire_version=1, name="x", incarnation="1"))], "bad frame"),
        ([b"a", b"b", b"c"], "wrong frames"),
    ],
)
async def test_wrong_frames_of_a_known_peer_are_dropped_and_counted(
    live: Running, frames: list[bytes], why: str
) -> None:
    gateway, _ = await joined(live)
    gateway.send_frames(*frames)
    gateway.send(SUBMIT, b"body")
    await gateway.next(Placed)
    assert (await dropped(live))[why] == 1


async def test_nothing_is_decoded_before_hello(live: Running) -> None:
    stranger = await live.peer("g9|1")
    stranger.send(SUBMIT, b"body")
    stranger.send_frames(b"\xc1\xff")
    stranger.send(hello(Role.GATEWAY, "g9", "1", stream_endpoint="ipc://x"))
    await stranger.next(Welcome)
    assert (await dropped(live))["before hello"] == 2


async def test_identities_that_are_not_text_or_not_the_hellos_are_refused(live: Running) -> None:
    liar = await live.peer("d7|1")
    liar.send(worker_hello(Role.DECODE, "d8"))
    assert (await liar.next(Refused)).code == "invalid_request"
    old = await live.peer("d8|1")
    old.send(worker_hello(Role.DECODE, "d8", wire_version=0))
    assert (await old.next(Refused)).code == "wire_mismatch"


async def test_stopping_refuses_what_waits_and_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, max_active=1) as live:
        gateway, _ = await joined(live)
        gateway.send(SUBMIT, b"body")
        await gateway.next(Placed)
        gateway.send(submit("r2"), b"body")
        await ask(live.admin, "status")
        stopping = asyncio.get_running_loop().create_task(live.router.stop())
        assert (await gateway.next(Fleet)).reason == "the router is stopping"
        gateway.send(submit("r3"), b"body")
        refused = [await gateway.next(Refused), await gateway.next(Refused)]
        assert [(r.request_id, r.code) for r in refused] == [
            ("r3", "draining"),
            ("r2", "draining"),
        ]
        await stopping


async def test_a_bug_in_the_core_ends_the_process(tmp_path: Path) -> None:
    async with running(tmp_path) as live:
        gateway, _ = await joined(live)
        gateway.send(SUBMIT, b"body")
        await gateway.next(Placed)
        core = live.router._core
        core.tables.attempts["r1", 1].state = AttemptState.QUEUED
        live.router._handle(Received("d0|1", _ended()))
        name, error = await live.tasks.failed
        assert name == "core"
        assert "cannot go from queued to ended" in str(error)
        live.tasks.failed = asyncio.get_running_loop().create_future()


def _ended() -> Ended:
    return Ended(request_id="r1", attempt=1, finish_reason="stop")

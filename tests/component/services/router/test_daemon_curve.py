"""A router with keys: a worker whose key is revoked is ejected like a silent one, and no other host
takes the place of a worker or reads what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import structlog
import zmq

from common.config import (
    Config,
    FleetConfig,
    LivenessConfig,
    ModelConfig,
    RouterConfig,
    SecurityConfig,
)
from common.messages import Beat, Leaving, Load, Refused, Role
from common.net.admin_client import ask
from common.net.endpoints import admin_address
from common.net.wire import encode
from common.process.lifecycle import Tasks
from loadtest.ports import free_port
from services.router.daemon import make
from tests.component.common.security.curve_rig import Hosts
from tests.rigs.messages import worker_hello
from tests.rigs.peers import Peer

SECONDS = 20.0


def config_of(run_dir: Path, keys: Path) -> Config:
    return Config(
        fleet=FleetConfig(run_dir=str(run_dir), drain_ms=100.0),
        model=ModelConfig(name="model"),
        router=RouterConfig(
            control=f"tcp://127.0.0.1:{free_port()}",
            worker_timeout_ms=500.0,
            liveness=LivenessConfig(rebuild_ms=0.0),
        ),
        security=SecurityConfig(keys_dir=str(keys)),
    )


async def state_of(config: Config, worker: Peer, wanted: str) -> None:
    """Until the router says so, while the worker beats on."""
    async with asyncio.timeout(SECONDS):
        while True:
            worker.socket.send([encode(Beat(load=Load()))])
            rows = (await ask(admin_address(config), "workers")).result
            if [row["state"] for row in rows if row["name"] == "d0"] == [wanted]:
                return


@asynccontextmanager
async def running(tmp_path: Path, *others: str) -> AsyncIterator[tuple[Hosts, Config, Peer]]:
    """A router on a host of its own, and d0 on the host `worker`, which is ready."""
    hosts = Hosts(tmp_path / "keys", "router", "worker", *others)
    config = config_of(tmp_path, tmp_path / "keys" / "router")
    tasks, daemon = Tasks(), make(config, "r0", structlog.get_logger("test"))
    await daemon.start(tasks)
    try:
        worker = hosts.end(hosts.curve("worker"), "d0|1", connect=config.router.control)
        await worker.up()
        worker.socket.send([encode(worker_hello(Role.DECODE, "d0"))])
        await state_of(config, worker, "ready")
        yield hosts, config, worker
        assert not tasks.failed.done()
    finally:
        hosts.close()
        await daemon.stop()
        await tasks.cancel_all()


async def asked(config: Config, verb: str) -> Any:
    return (await ask(admin_address(config), verb)).result


async def test_a_worker_whose_key_is_revoked_is_ejected_though_it_speaks(tmp_path: Path) -> None:
    async with running(tmp_path) as (hosts, config, worker):
        hosts.keys.revoke("worker")
        await state_of(config, worker, "ejected")
        status: dict[str, Any] = await asked(config, "status")
        assert status["dropped"]["peer refused: revoked_key"] > 0


async def test_a_host_of_the_list_does_not_take_the_place_of_anothers_worker(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, "attacker") as (hosts, config, worker):
        attacker = hosts.end(hosts.curve("attacker"), "d0|2", connect=config.router.control)
        await attacker.up()
        attacker.socket.send([encode(worker_hello(Role.DECODE, "d0", "2"))])
        refused = msgspec.msgpack.decode((await attacker.hear())[0], type=Refused)
        assert "may not take the place of decode d0" in refused.message
        await state_of(config, worker, "ready")
        (row,) = await asked(config, "workers")
        assert (row["name"], row["incarnation"]) == ("d0", "1")
        assert (await asked(config, "status"))["dropped"]["identity refused"] == 1
        events = (await asked(config, "events"))["events"]
        assert [event["event"] for event in events].count("identity.refused") == 1


async def test_a_host_of_the_list_neither_speaks_nor_hears_under_anothers_identity(
    tmp_path: Path,
) -> None:
    """It knows name and incarnation, and asks libzmq for the same routing id."""
    async with running(tmp_path, "attacker") as (hosts, config, worker):
        curve = hosts.curve("attacker")
        socket = curve.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, b"d0|1")
        curve.apply(socket, binds=False)
        (key,) = hosts.keys.peer("router").keys
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.encode())
        socket.connect(config.router.control)
        socket.send(encode(Leaving(reason="an attack")))
        await counted_by_router(config, "peer refused: identity_of_another")
        await state_of(config, worker, "ready")
        while not worker.inbox.empty():
            worker.inbox.get_nowait()
        await worker.hear()
        assert socket.poll(0) == 0
        socket.close(linger=0)


async def test_an_entry_with_roles_speaks_for_no_other(tmp_path: Path) -> None:
    async with running(tmp_path, "other") as (hosts, config, worker):
        hosts.keys.add("other", None, ["gateway"], ["g7"])
        other = hosts.end(hosts.curve("other"), "p0|1", connect=config.router.control)
        await other.up()
        async with asyncio.timeout(SECONDS):
            while True:
                other.socket.send([encode(worker_hello(Role.PREFILL, "p0"))])
                frame = (await other.hear())[0]
                if b"Refused" in frame and b"its entry of the allow-list" in frame:
                    break
        await state_of(config, worker, "ready")


async def test_a_worker_is_not_ordered_to_take_a_role_for_which_its_host_may_not_speak(
    tmp_path: Path,
) -> None:
    """Until the list is read again the order is accepted; then it is taken back, and given anew."""
    async with running(tmp_path, "other") as (hosts, config, worker):
        hosts.keys.add("other", None, ["decode"])
        other = hosts.end(hosts.curve("other"), "d1|1", connect=config.router.control)
        await other.up()
        hello = worker_hello(Role.DECODE, "d1", configured_role=Role.DECODE)
        other.socket.send([encode(hello)])
        async with asyncio.timeout(SECONDS):
            while True:
                for each in (worker, other):
                    each.socket.send([encode(Beat(load=Load()))])
                order = {"worker": "d1", "role": "prefill"}
                answer = await ask(admin_address(config), "role", order)
                told = answer.error.get("message", "")
                if "its entry of the allow-list has the roles decode" in told:
                    break
                await ask(admin_address(config), "role", order | {"role": "decode"})
        assert told.startswith("d1 cannot become a prefill worker: host other may not speak")


async def counted_by_router(config: Config, why: str) -> None:
    async with asyncio.timeout(SECONDS):
        while why not in (await asked(config, "status"))["dropped"]:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)

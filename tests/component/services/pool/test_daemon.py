"""The pool daemon as a process of its own, between a played router and workers that are stores:
what it learns, takes, gives, tells, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from common import config as configuration
from common.identity import pull_key
from common.kv.layout import HostMemory
from common.kv.store.record import record_bytes
from common.messages import (
    WIRE_VERSION,
    Beat,
    Drain,
    Hello,
    Introduce,
    KvCounts,
    KvHolder,
    KvSource,
    Layout,
    Leaving,
    OrderStore,
    PrefixDelta,
    Refused,
    Role,
    ToRouter,
    Welcome,
)
from common.net.endpoints import control_address
from common.prefix import split
from tests.component.common.kv.offers.test_copies import SOURCE, STORING, hashes, names
from tests.component.common.kv.service_peer import (
    CONFIG,
    GEOMETRY,
    LAYERS,
    Remote,
    drained,
    filled,
    linked,
    make_service,
    remote,
    wait_for,
)
from tests.rigs.peers import Peer
from tests.rigs.processes import Processes, processes

KEY = ("r", 1)
LONG_S = 30.0
TARGET = list(range(60, 60 - len(SOURCE), -1))
LAYOUT = Layout(
    worker="p0",
    fingerprint="f",
    fingerprint_parts={"model": "m"},
    block_tokens=16,
    block_bytes=GEOMETRY.block_bytes,
    layers=LAYERS,
)
WELCOME = Welcome(wire_version=WIRE_VERSION, name="r0", incarnation="1")
SLOTS = 8 * (1 << 20) // GEOMETRY.block_bytes
FLEET = """\
[fleet]
run_dir = "{run_dir}"
[kv]
message_bytes = {message_bytes}
[kv.store]
ram_mib = 8
[prefill.p0]
[decode.d0]
[pool.s0.kv.store]
ttl_s = {ttl_s}
disk_mib = {disk_mib}
path = "{run_dir}/disk"
encrypt_at_rest = {sealed}
"""


def fleet_file(
    run_dir: Path, ttl_s: float = 300.0, disk_mib: int = 0, *, sealed: bool = False
) -> str:
    """Messages are as large as those of the workers."""
    return FLEET.format(
        run_dir=run_dir,
        ttl_s=ttl_s,
        disk_mib=disk_mib,
        sealed=str(sealed).lower(),
        message_bytes=CONFIG.message_bytes,
    )


class Fleet:
    """A pool's process, and the router that it knows."""

    def __init__(
        self, made: Processes, ttl_s: float = 300.0, disk_mib: int = 0, *, sealed: bool = False
    ) -> None:
        self._made = made
        self.path = made.folder / "fleet.toml"
        self.path.write_text(fleet_file(made.folder, ttl_s, disk_mib, sealed=sealed))
        self.router = Peer(control_address(configuration.load(self.path, {})), ToRouter)
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        return self._made.start("pool", "pool", "--config", str(self.path), "--name", "s0")

    def log(self) -> str:
        return self._made.log("pool")

    async def opened(self, layout: Layout = LAYOUT) -> Hello:
        """It was told the layout, and says what it has made of it."""
        first = await self.router.next(Hello)
        assert (first.role, first.name, first.model) == (Role.POOL, "s0", "baton-tiny")
        assert (first.fingerprint, first.capacity) == ("", None)
        self.router.send(WELCOME)
        self.router.send(layout)
        return await self.router.next(Hello)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(20)


@pytest.fixture
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    with processes() as made:
        fleet = Fleet(made, **getattr(request, "param", {}))
        yield fleet
        fleet.router.close()


def holder_of(hello: Hello) -> KvHolder:
    return KvHolder(
        name=hello.name,
        incarnation=hello.incarnation,
        fingerprint=hello.fingerprint,
        kv_address=hello.kv_address,
        lasting=True,
    )


def source_of(hello: Hello) -> KvSource:
    return KvSource(
        name=hello.name,
        incarnation=hello.incarnation,
        fingerprint=hello.fingerprint,
        kv_address=hello.kv_address,
        tokens=99,
    )


@contextmanager
def offering(hello: Hello) -> Iterator[Remote]:
    """A worker that stores the blocks and has offered them to the pool; its stream is over."""
    with remote("d1", config=STORING) as worker:
        worker.call("stored_save", hashes(), SOURCE)
        wait_for(lambda: worker.call("linked", hello.kv_address), LONG_S)
        joined = b"".join(hashes())
        worker.call("offer_copies", KEY, holder_of(hello), joined, names(), len(SOURCE))
        worker.call("end_copies", KEY)
        yield worker


async def told(router: Peer, count: int, medium: str = "store") -> bytes:
    """The names of this many blocks, of which the pool tells that it has them there."""
    found = b""
    while len(found) < 8 * count:
        delta = await router.next(PrefixDelta)
        assert delta.medium in ("store", "disk")
        found += delta.stored if delta.medium == medium else b""
    return found


async def test_it_learns_the_layout_takes_what_is_offered_tells_it_and_gives_it(
    fleet: Fleet,
) -> None:
    hello = await fleet.opened()
    assert (hello.fingerprint, hello.fingerprint_parts) == ("f", {"model": "m"})
    assert hello.capacity is not None
    room = hello.capacity
    assert (room.block_tokens, room.kv_block_bytes, room.kv_layers) == (16, *_block())
    assert room.pull_blocks == SLOTS
    base = np.zeros(GEOMETRY.end, np.uint8)
    puller, _ = make_service("p1", base, STORING)
    try:
        with offering(hello):
            assert await told(fleet.router, len(SOURCE)) == names()
        assert await asyncio.to_thread(wait_for, lambda: linked(puller, hello.kv_address), LONG_S)
        puller.pull(KEY, source_of(hello), b"".join(hashes()), TARGET)
        (end,) = await asyncio.to_thread(drained, puller, 20.0)
    finally:
        puller.stop()
    assert (end.request_id, end.attempt, end.error) == (*pull_key(KEY), "")
    held, origin = HostMemory(base, GEOMETRY), HostMemory(filled(1), GEOMETRY)
    for layer in range(LAYERS):
        for theirs, ours in zip(SOURCE, TARGET, strict=True):
            assert (held.page(layer, ours) == origin.page(layer, theirs)).all()
    async with asyncio.timeout(LONG_S):
        beat = await fleet.router.next(Beat)
        while beat.kv_counts is None or beat.kv_counts.store_served < len(SOURCE):
            beat = await fleet.router.next(Beat)
    counts = beat.kv_counts
    assert (counts.store_held, counts.store_copied) == (len(SOURCE), len(SOURCE))
    assert counts.store_slots == SLOTS
    assert beat.load is not None


def _block() -> tuple[int, int]:
    return GEOMETRY.block_bytes, LAYERS


async def test_a_router_that_comes_back_is_told_all_of_it_again(fleet: Fleet) -> None:
    hello = await fleet.opened()
    with offering(hello):
        await told(fleet.router, len(SOURCE))
    fleet.router.send(WELCOME)
    cleared = await fleet.router.next(PrefixDelta)
    assert cleared == PrefixDelta(cleared=True, medium="store")
    assert await told(fleet.router, len(SOURCE)) == names()


@pytest.mark.parametrize("fleet", [{"ttl_s": 1.0}], indirect=True)
async def test_what_nobody_uses_is_dropped_in_time_and_told(fleet: Fleet) -> None:
    hello = await fleet.opened()
    with offering(hello):
        await told(fleet.router, len(SOURCE))
    gone = b""
    while len(gone) < len(names()):
        gone += (await fleet.router.next(PrefixDelta)).removed
    assert sorted(gone) == sorted(names())


async def test_another_layout_is_not_taken_and_said_once(fleet: Fleet) -> None:
    await fleet.opened()
    other = msgspec.structs.replace(LAYOUT, worker="p9", fingerprint="other")
    fleet.router.send(LAYOUT)
    fleet.router.send(other)
    fleet.router.send(Drain(on=True))
    beat = await fleet.router.next(Beat)
    while not beat.drained:
        beat = await fleet.router.next(Beat)
    log = fleet.log()
    assert log.count("pool.other_layout") == 1
    assert "it goes on with the layout of p0, and holds none of p9" in log
    assert fleet.process.poll() is None


async def test_a_layout_that_its_memory_cannot_hold_ends_it_with_a_sentence(fleet: Fleet) -> None:
    await fleet.router.next(Hello)
    fleet.router.send(WELCOME)
    fleet.router.send(msgspec.structs.replace(LAYOUT, block_bytes=16 << 20))
    assert await asyncio.to_thread(fleet.process.wait, 20) == 1
    assert "[pool.NAME.kv.store] ram_mib holds none" in fleet.log()


async def test_a_pool_that_is_fenced_ends_and_one_that_is_stopped_says_so(fleet: Fleet) -> None:
    hello = await fleet.opened()
    fleet.router.send(Introduce(kv_address="127.0.0.1:1"))
    assert await asyncio.to_thread(fleet.stop) == 0
    assert (await fleet.router.next(Leaving)).reason == "stopping"
    fleet.process = fleet.start()
    assert (await fleet.router.next(Hello)).incarnation != hello.incarnation
    fleet.router.send(Refused(code="worker_lost", message="s0|1 was replaced"))
    assert await asyncio.to_thread(fleet.process.wait, 20) == 1
    assert "the router refused this pool: s0|1 was replaced" in fleet.log()


async def test_killed_amid_a_pull_the_pull_fails_and_the_next_pool_begins_empty(
    fleet: Fleet,
) -> None:
    hello = await fleet.opened()
    with offering(hello):
        await told(fleet.router, len(SOURCE))
    puller, _ = make_service("p1", np.zeros(GEOMETRY.end, np.uint8), STORING)
    try:
        await asyncio.to_thread(wait_for, lambda: linked(puller, hello.kv_address), LONG_S)
        os.kill(fleet.process.pid, signal.SIGSTOP)
        puller.pull(KEY, source_of(hello), b"".join(hashes()), TARGET)
        os.kill(fleet.process.pid, signal.SIGKILL)
        (end,) = await asyncio.to_thread(drained, puller, 20.0)
    finally:
        puller.stop()
    assert end.error
    fleet.process.wait()
    fleet.process = fleet.start()
    again = await fleet.opened()
    assert again.incarnation != hello.incarnation
    fleet.router.send(WELCOME)
    deltas = [await fleet.router.next(PrefixDelta)]
    assert deltas == [PrefixDelta(cleared=True, medium="store")]


async def pulled(hello: Hello) -> np.ndarray:
    """The memory of a worker that has pulled the blocks out of the pool."""
    base = np.zeros(GEOMETRY.end, np.uint8)
    puller, _ = make_service("p1", base, STORING)
    try:
        assert await asyncio.to_thread(wait_for, lambda: linked(puller, hello.kv_address), LONG_S)
        puller.pull(KEY, source_of(hello), b"".join(hashes()), TARGET)
        (end,) = await asyncio.to_thread(drained, puller, 20.0)
    finally:
        puller.stop()
    assert end.error == "", end.message
    return base


async def beat_with(fleet: Fleet, wanted: Callable[[KvCounts], bool]) -> KvCounts:
    async with asyncio.timeout(LONG_S):
        while True:
            counts = (await fleet.router.next(Beat)).kv_counts
            if counts is not None and wanted(counts):
                return counts


@pytest.mark.parametrize(
    "fleet", [{"disk_mib": 32}, {"disk_mib": 32, "sealed": True}], indirect=True
)
async def test_a_pool_that_was_killed_tells_what_its_disk_has_and_gives_it(fleet: Fleet) -> None:
    hello = await fleet.opened()
    assert hello.capacity is not None
    on_disk = (32 << 20) // record_bytes(GEOMETRY.block_bytes)
    assert hello.capacity.pull_blocks == SLOTS + on_disk
    assert hello.capacity.disk_blocks == on_disk
    with offering(hello):
        await told(fleet.router, len(SOURCE))
        counts = await beat_with(fleet, lambda counts: counts.store_disk_held >= len(SOURCE))
    assert counts.store_disk_slots == on_disk
    fleet.process.kill()
    fleet.process.wait()
    fleet.process = fleet.start()
    again = await fleet.opened()
    fleet.router.send(WELCOME)
    found = await told(fleet.router, len(SOURCE), "disk")
    assert sorted(split(found)) == sorted(split(names()))
    held, origin = HostMemory(await pulled(again), GEOMETRY), HostMemory(filled(1), GEOMETRY)
    for layer in range(LAYERS):
        for theirs, ours in zip(SOURCE, TARGET, strict=True):
            assert (held.page(layer, ours) == origin.page(layer, theirs)).all()
    counts = await beat_with(fleet, lambda counts: counts.store_served >= len(SOURCE))
    assert (counts.store_disk_read, counts.store_copied) == (len(SOURCE), 0)
    folder = fleet.path.parent / "disk"
    assert {path.name for path in folder.iterdir()} - {"store.key"} == {"s0.pool"}
    (segment,) = folder.glob("s0.pool/*.kv")
    readable = hashes()[0] in segment.read_bytes()
    assert readable is not (folder / "store.key").exists(), "sealed where there is a key"


@pytest.mark.parametrize("fleet", [{"disk_mib": 32, "sealed": True}], indirect=True)
async def test_a_key_that_others_may_read_ends_it_with_a_sentence(fleet: Fleet) -> None:
    (fleet.path.parent / "disk").mkdir(mode=0o750)
    key = fleet.path.parent / "disk" / "store.key"
    key.write_text("ab" * 32)
    key.chmod(0o644)
    await fleet.router.next(Hello)
    fleet.router.send(WELCOME)
    fleet.router.send(LAYOUT)
    assert await asyncio.to_thread(fleet.process.wait, 20) == 1
    assert f"run chmod 0600 {key}" in fleet.log()


async def gone_names(router: Peer, count: int) -> list[bytes]:
    gone = b""
    while len(gone) < 8 * count:
        gone += (await router.next(PrefixDelta)).removed
    return sorted(split(gone))


@pytest.mark.parametrize("fleet", [{"ttl_s": 2.0}], indirect=True)
async def test_pinned_blocks_outlast_their_time_and_dropped_ones_go_at_once(fleet: Fleet) -> None:
    hello = await fleet.opened()
    pinned, rest = split(names())[:4], split(names())[4:]
    with offering(hello):
        await told(fleet.router, len(SOURCE))
        fleet.router.send(OrderStore(action="pin", names=b"".join(pinned)))
        counts = await beat_with(fleet, lambda counts: counts.store_pinned == 4)
        assert counts.store_held == len(SOURCE)
        assert await gone_names(fleet.router, len(rest)) == sorted(rest)
    await beat_with(fleet, lambda counts: counts.store_held == 4)
    fleet.router.send(OrderStore(action="drop", names=b"".join(pinned[2:])))
    assert await gone_names(fleet.router, 2) == sorted(pinned[2:])
    fleet.router.send(OrderStore(action="unpin", names=b"".join(pinned)))
    assert await gone_names(fleet.router, 2) == sorted(pinned[:2])
    await beat_with(fleet, lambda counts: (counts.store_held, counts.store_pinned) == (0, 0))


@pytest.mark.parametrize("fleet", [{"disk_mib": 32}], indirect=True)
async def test_what_was_dropped_is_not_on_the_disk_of_the_next_pool(fleet: Fleet) -> None:
    hello = await fleet.opened()
    with offering(hello):
        await told(fleet.router, len(SOURCE))
        await beat_with(fleet, lambda counts: counts.store_disk_held >= len(SOURCE))
    dropped, rest = split(names())[:3], split(names())[3:]
    fleet.router.send(OrderStore(action="drop", names=b"".join(dropped)))
    assert await gone_names(fleet.router, 3) == sorted(dropped)
    await beat_with(fleet, lambda counts: counts.store_disk_held == len(rest))
    assert await asyncio.to_thread(fleet.stop) == 0
    fleet.process = fleet.start()
    await fleet.opened()
    fleet.router.send(WELCOME)
    assert sorted(split(await told(fleet.router, len(rest), "disk"))) == sorted(rest)


@pytest.mark.parametrize("fleet", [{"disk_mib": 32}], indirect=True)
async def test_a_disk_that_cannot_be_used_leaves_the_memory(fleet: Fleet) -> None:
    (fleet.path.parent / "disk").mkdir(mode=0o750)
    (fleet.path.parent / "disk" / "s0.pool").write_text("a file")
    hello = await fleet.opened()
    with offering(hello):
        assert await told(fleet.router, len(SOURCE)) == names()
    await beat_with(
        fleet, lambda counts: (counts.store_disk_off, counts.store_held) == (1, len(SOURCE))
    )
    assert fleet.log().count("store.disk_off") == 1
    await pulled(hello)


def test_a_name_that_the_file_does_not_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(fleet_file(tmp_path))
    with processes() as made:
        process = made.start("pool", "pool", "--config", str(path), "--name", "s9")
        assert process.wait(20) == 2
        assert "pool.s9: no such pool in the file (there: s0)" in made.log("pool")


def test_it_loads_no_model_library() -> None:
    loaded = "import sys, services.pool.daemon; print(sorted({'vllm', 'torch'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"

"""A daemon orders that a stream is copied ahead of its move: what the engine's scheduler and the
daemon are told, and what the other worker has then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.config import KvConfig
from common.kv.daemon_link.side_channel import DaemonSideChannel
from common.kv.layout import HostMemory
from common.kv.messages import KvCopyAhead, KvDone
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.kv.store.results import StoreSize
from common.messages import KvHolder
from tests.component.common.kv.offers.test_copies import KEY, LONG_S, SOURCE, STORING, hashes, names
from tests.component.common.kv.service_peer import CONFIG, GEOMETRY, filled, remote, wait_for
from tests.component.common.kv.stored import STORE_SLOTS, Stored

NOWHERE = KvHolder(name="d2", incarnation="inc-d2", fingerprint="f", kv_address="127.0.0.1:1")


class Daemon:
    """The daemon's end of a worker's side channel, and that worker's KV service."""

    def __init__(self, channel: DaemonSideChannel, service: KvService) -> None:
        self.service = service
        self._channel = channel
        self._done: asyncio.Queue[KvDone] = asyncio.Queue()
        channel.start(self._done.put_nowait)

    def order(self, holder: KvHolder | None) -> None:
        request_id, attempt = KEY
        self._channel.send(
            KvCopyAhead(request_id=request_id, attempt=attempt, holder=holder, lag_blocks=0)
        )

    async def told(self) -> KvDone:
        return await asyncio.wait_for(self._done.get(), LONG_S)


@contextmanager
def worker(folder: Path, config: KvConfig) -> Iterator[tuple[DaemonSideChannel, KvService]]:
    address = f"ipc://{folder / 'side'}"
    channel = DaemonSideChannel(address)
    size = StoreSize(STORE_SLOTS, 300.0) if config.store.ram_mib else None
    identity = WorkerIdentity("d1", "inc-d1", "f")
    memory = HostMemory(filled(1), GEOMETRY)
    service = KvService(identity, config, memory, address, store=size)
    service.start()
    channel.wait_listening(LONG_S)
    yield channel, service
    service.stop()
    channel.close()


def test_the_daemon_is_told_when_the_holder_has_all(tmp_path: Path) -> None:
    async def play(channel: DaemonSideChannel, service: KvService, holder: KvHolder) -> None:
        daemon = Daemon(channel, service)
        daemon.order(holder)
        store, found = service.store, {}
        assert store is not None

        def ordered() -> bool:
            found.update(store.drain().holders)
            return bool(found)

        await asyncio.to_thread(wait_for, ordered, LONG_S)
        assert found == {KEY: holder}, "the scheduler is to offer it"
        all_names = names()
        service.offer_copies(KEY, holder, b"".join(hashes()), all_names, len(SOURCE))
        done = await daemon.told()
        assert (done.request_id, done.attempt, done.side) == (*KEY, "copy")
        assert (done.held, done.message) == (len(SOURCE), "")

    with remote("d2", config=STORING) as taker, worker(tmp_path, STORING) as (channel, service):
        Stored(service).save(hashes(), SOURCE)
        holder = KvHolder(
            name="d2", incarnation="inc-d2", fingerprint="f", kv_address=taker.address
        )
        asyncio.run(play(channel, service, holder))
        assert taker.call("stored_held") == len(SOURCE)


def test_nobody_is_to_have_it_any_more(tmp_path: Path) -> None:
    async def play(channel: DaemonSideChannel, service: KvService) -> None:
        Daemon(channel, service).order(None)
        store = service.store
        assert store is not None
        await asyncio.to_thread(wait_for, lambda: KEY in store.drain().holders, LONG_S)

    with worker(tmp_path, STORING) as (channel, service):
        asyncio.run(play(channel, service))


def test_a_worker_without_a_store_says_so(tmp_path: Path) -> None:
    async def play(channel: DaemonSideChannel, service: KvService) -> None:
        daemon = Daemon(channel, service)
        daemon.order(None)
        daemon.order(NOWHERE)
        done = await daemon.told()
        assert (done.held, done.message) == (0, "its worker has no store for others")

    with worker(tmp_path, CONFIG) as (channel, service):
        asyncio.run(play(channel, service))

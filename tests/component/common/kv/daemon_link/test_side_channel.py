"""The side channel: messages between KV threads and their daemon, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.blocks import Kept, KvGroup
from common.errors import BatonError
from common.kv.daemon_link.ranks import RankSideChannels
from common.kv.daemon_link.side_channel import DaemonSideChannel, ThreadSideChannel
from common.kv.messages import (
    DaemonToKv,
    KvConnect,
    KvCopied,
    KvDone,
    KvListening,
    KvRelease,
    KvStatus,
)
from common.messages import KvCounts, KvReport
from common.net.wire import encode
from tests.rigs.fleet import wait_until


def done(request_id: str, payload_bytes: int) -> KvDone:
    report = KvReport(payload_bytes=payload_bytes)
    return KvDone(request_id=request_id, attempt=1, side="send", report=report)


GROUPS = (KvGroup(16), KvGroup(16, Kept.WINDOW, 64))


class Rank:
    """A KV thread's end on a thread and loop of its own, as in an engine process."""

    def __init__(self, address: str, number: int) -> None:
        self.received: list[DaemonToKv] = []
        self._address = address
        self._number = number
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(5)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.side = ThreadSideChannel(self._address, self.received.append)
        self.side.start(
            KvListening(kv_address=f"host:{self._number}", groups=GROUPS, block_bytes=100)
        )
        self._stopped = asyncio.Event()
        self._ready.set()
        await self._stopped.wait()
        self.side.close()

    def send(self, message: KvDone | KvStatus | KvCopied) -> None:
        if isinstance(message, KvStatus):
            self.loop.call_soon_threadsafe(self.side.send_status, message)
        else:
            self.loop.call_soon_threadsafe(self.side.send, message)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)


@pytest.fixture
def addresses(tmp_path: Path) -> list[str]:
    return [f"ipc://{tmp_path}/kv{rank}.sock" for rank in range(2)]


@pytest.fixture
def ranks(addresses: list[str]) -> Iterator[list[Rank]]:
    started = [Rank(address, at) for at, address in enumerate(addresses)]
    yield started
    for rank in started:
        rank.stop()


def test_two_ranks_are_one_worker_to_the_daemon(addresses: list[str], ranks: list[Rank]) -> None:
    sides = RankSideChannels(addresses)
    listening = sides.wait_listening(5)
    assert (listening.kv_address, listening.block_bytes) == ("host:0,host:1", 200)
    assert listening.groups == GROUPS

    async def serve() -> None:
        ended: list[KvDone] = []
        sides.start(ended.append)
        ranks[0].send(done("r", 10))
        ranks[0].send(done("only one rank", 1))
        ranks[1].send(done("r", 20))
        await asyncio.to_thread(wait_until, "an end", lambda: bool(ended))
        assert [(end.request_id, end.report.payload_bytes) for end in ended] == [("r", 30)]
        before: KvStatus | None = sides.status
        assert before is None, "one rank has not spoken"
        for rank in ranks:
            rank.send(KvStatus(counts=KvCounts(handoffs_out=1, bytes_out=5)))
        await asyncio.to_thread(wait_until, "a status", lambda: sides.status is not None)
        status = sides.status
        assert status is not None
        assert status.counts == KvCounts(handoffs_out=1, bytes_out=10)
        messages: list[DaemonToKv] = [
            KvConnect(kv_address="a:1,b:2"),
            KvRelease(request_id="r", attempt=1, reason="client gone"),
        ]
        for message in messages:
            sides.send(message)

        def delivered() -> bool:
            return all(len(rank.received) == 2 for rank in ranks)

        await asyncio.to_thread(wait_until, "both words at both ranks", delivered)
        assert [rank.received for rank in ranks] == [messages, messages]

    asyncio.run(serve())
    sides.close()


def test_copies_are_told_beside_the_ends(addresses: list[str], ranks: list[Rank]) -> None:
    """Whoever does not want them hears the ends all the same."""
    sides = RankSideChannels(addresses[:1])
    sides.wait_listening(5)
    copied = KvCopied(hashes=bytes(32), names=bytes(8))

    async def serve() -> None:
        ended: list[KvDone] = []
        told: list[KvCopied] = []
        sides.start(ended.append, told.append)
        ranks[0].send(copied)
        await asyncio.to_thread(wait_until, "copies", lambda: told == [copied])
        sides.start(ended.append)
        ranks[0].send(copied)
        ranks[0].send(done("r", 10))
        await asyncio.to_thread(wait_until, "an end", lambda: bool(ended))
        assert len(told) == 1

    asyncio.run(serve())
    sides.close()


def test_a_rank_that_never_reports_is_named_in_one_sentence(addresses: list[str]) -> None:
    sides = RankSideChannels(addresses)
    with pytest.raises(BatonError, match="did not report where it listens"):
        sides.wait_listening(0.1)
    sides.close()


def test_what_comes_before_the_daemon_listens_is_kept_for_it(tmp_path: Path) -> None:
    """An engine tells what its disk has as soon as it runs."""
    channel = DaemonSideChannel(f"ipc://{tmp_path}/early")
    told = KvCopied(hashes=bytes(32), names=bytes(8), gone=bytes(32), disk=True)
    copied: list[KvCopied] = []

    async def listen() -> None:
        channel._on_frames([encode(told)])
        channel.start(lambda _: None, copied.append)
        channel.close()

    asyncio.run(listen())
    assert copied == [told]

"""What the transport does with endpoints that fail at a bad moment."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

from common.kv.transport.ucx import PUMP_S, UcxLink, UcxWorker, data_tag

MESSAGE_BYTES = 4 << 20
MESSAGES = 12


class _Closing:
    """An endpoint whose peer died while it connected, as UCXX shows it."""

    alive = False

    def set_close_callback(self, *_: object) -> None:
        raise RuntimeError("Endpoint is closing or has already closed.")

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name}: UCX never completes what is posted on such an endpoint")


class _Silent:
    """An endpoint whose peer has said nothing yet. Notes what is posted."""

    alive = True

    def __init__(self) -> None:
        self.posted: list[str] = []

    def set_close_callback(self, *_: object) -> None:
        """It does not close."""

    def stream_recv(self, _: object) -> _Pending:
        self.posted.append("receive")
        return _Pending()

    def stream_send(self, _: object) -> _Pending:
        self.posted.append("send")
        return _Pending()


class _Pending:
    completed = False


class _Streaming:
    """UCX's worker while others send without end. Each message takes its receiver some time."""

    progressed = 0

    def progress(self) -> None:
        self.progressed += 1
        time.sleep(PUMP_S)

    def arm(self) -> bool:
        return False


async def test_a_peer_that_dies_while_it_connects_costs_its_link_and_nothing_else() -> None:
    accepted: list[UcxLink] = []
    lost = asyncio.Event()
    opened: list[str | None] = []

    def accept(link: UcxLink) -> None:
        link.on_lost = lost.set
        link.open(opened.append)
        accepted.append(link)

    ucx = UcxWorker("tcp,self", accept)
    ucx.start()
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    ucx._accepted(_Closing())
    async with asyncio.timeout(5):
        await lost.wait()
    assert accepted[0].lost
    assert opened == ["the connection is lost"]
    assert ucx.inflight == 0
    assert failures == []
    ucx.close()


async def test_the_side_that_was_connected_to_does_not_speak_first() -> None:
    """UCX crashes when it sends what was posted before the peer died as it connected."""
    ucx = UcxWorker("tcp,self", lambda _: None)
    ucx.start()
    connecting, accepted = _Silent(), _Silent()
    UcxLink(ucx, connecting, accepted=False).open(lambda _: None)
    UcxLink(ucx, accepted, accepted=True).open(lambda _: None)
    assert connecting.posted == ["receive", "send"]
    assert accepted.posted == ["receive"]
    connecting.alive = accepted.alive = False
    ucx.close()


async def test_other_calls_of_the_loop_get_their_turn_while_messages_come_without_end() -> None:
    """An order to fetch once waited for half a second of copies that nobody waited for."""
    ucx = UcxWorker("tcp,self", lambda _: None)
    ucx.start()
    before, ucx._worker = ucx._worker, _Streaming()
    ucx.schedule_progress()
    turns = []
    for _ in range(3):
        await asyncio.sleep(0)
        turns.append(ucx._worker.progressed)
    assert turns == [1, 2, 3]
    ucx._worker = before
    ucx.close()


async def test_more_than_shared_memorys_ring_holds_arrives_as_it_was_sent() -> None:
    """UCX cuts what it moves through shared memory into segments and counts their bytes in 16 bits:
    with longer ones it reports messages that are longer than they are."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[UcxLink] = loop.create_future()
    opened: asyncio.Future[str | None] = loop.create_future()
    sender, receiver = (
        UcxWorker("tcp,sm,self", accepted.set_result),
        UcxWorker("tcp,sm,self", lambda _: None),
    )
    sender.start()
    receiver.start()
    link = receiver.connect("127.0.0.1", sender.listen(0))
    link.open(opened.set_result)
    async with asyncio.timeout(10):
        back = await accepted
        back.open(lambda _: None)
        assert await opened is None
        assert "sysv/memory" in link.lanes()
        sent = np.random.default_rng(0).integers(0, 256, (MESSAGES, MESSAGE_BYTES), np.uint8)
        got = np.zeros_like(sent)
        ends: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()
        for index in range(MESSAGES):
            tag = data_tag(1, index, 20)
            link.receive(got[index], tag, partial(_note, ends, index))
            back.send(sent[index], tag, partial(_sound, index))
        assert sorted([await ends.get() for _ in range(MESSAGES)]) == [
            (index, None) for index in range(MESSAGES)
        ]
    assert np.array_equal(got, sent)
    link.close()
    receiver.close()
    sender.close()


def _note(ends: asyncio.Queue[tuple[int, str | None]], index: int, error: str | None) -> None:
    ends.put_nowait((index, error))


def _sound(index: int, error: str | None) -> None:
    assert error is None, f"message {index}: {error}"


async def test_what_was_sent_leaves_while_its_thread_is_busy_if_it_is_progressed() -> None:
    """A large message waits for its receiver's answer, which must be read."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[UcxLink] = loop.create_future()
    sender = UcxWorker("tcp,self", accepted.set_result)
    sender.start()
    port = sender.listen(0)
    arrived = threading.Event()
    far = threading.Thread(target=lambda: asyncio.run(_receive_one(port, arrived)))
    far.start()
    async with asyncio.timeout(10):
        back = await accepted
        opened: asyncio.Future[str | None] = loop.create_future()
        back.open(opened.set_result)
        assert await opened is None
    back.send(np.ones(MESSAGE_BYTES, np.uint8), data_tag(1, 0, 20), partial(_sound, 0))
    deadline = time.monotonic() + 10
    while not arrived.is_set() and time.monotonic() < deadline:
        back.progress()
    assert arrived.is_set()
    far.join()
    sender.close()
    back.progress()


async def _receive_one(port: int, arrived: threading.Event) -> None:
    done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    receiver = UcxWorker("tcp,self", lambda _: None)
    receiver.start()
    link = receiver.connect("127.0.0.1", port)
    link.open(opened.set_result)
    assert await opened is None
    link.receive(np.zeros(MESSAGE_BYTES, np.uint8), data_tag(1, 0, 20), done.set_result)
    if await done is None:
        arrived.set()
    receiver.close()


async def test_a_closed_worker_leaves_nothing_behind_for_the_collector() -> None:
    """Links that were not closed and receives that never came included: a fork of this process
    could otherwise destroy the worker a second time, over the descriptors that both share."""
    gc.collect()
    before = _descriptors()
    gc.disable()
    try:
        accepted: asyncio.Future[UcxLink] = asyncio.get_running_loop().create_future()
        opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        ends = (
            UcxWorker("tcp,sm,self", accepted.set_result),
            UcxWorker("tcp,sm,self", lambda _: None),
        )
        for end in ends:
            end.start()
        link = ends[1].connect("127.0.0.1", ends[0].listen(0))
        link.open(opened.set_result)
        async with asyncio.timeout(10):
            (await accepted).open(lambda _: None)
            assert await opened is None
        link.receive(np.zeros(64, np.uint8), 7, lambda _: None)
        link.close_later(60.0)
        during = _descriptors()
        for end in ends:
            end.close()
        assert before < during
        assert _descriptors() == before
    finally:
        gc.enable()


def _descriptors() -> int:
    return sum(
        "eventpoll" in str(entry.readlink())
        for entry in Path("/proc/self/fd").iterdir()
        if entry.is_symlink()
    )

"""Frames wait for the message at hand, then leave in one write per connection."""

from __future__ import annotations

import asyncio

import msgspec

from common.config import GatewayConfig
from services.gateway.http.client_connection import TOKENS_MAX, ClientConnection, WriteBatcher


class Recorder(asyncio.WriteTransport):
    """A transport that takes everything, or nothing (`stuck`)."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.stuck = False
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes)) if self.stuck else 0

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def connected(
    batcher: WriteBatcher, *, patient: bool = False, **limits: int
) -> tuple[ClientConnection, Recorder]:
    config = msgspec.convert(limits, GatewayConfig)
    connection, transport = ClientConnection(config, batcher, patient=patient), Recorder()
    connection.attach(transport, chunked=True)
    return connection, transport


async def test_frames_of_one_turn_are_one_write_per_connection() -> None:
    batcher = WriteBatcher()
    (one, first), (two, second) = connected(batcher), connected(batcher)
    for frame in (b"a", b"b", b"c"):
        one.write(frame)
        two.write(frame.upper())
    assert not first.writes
    await asyncio.sleep(0)
    assert (first.writes, second.writes) == ([b"3\r\nabc\r\n"], [b"3\r\nABC\r\n"])
    one.write(b"d")
    await asyncio.sleep(0)
    assert first.writes[1:] == [b"1\r\nd\r\n"]
    assert len(second.writes) == 1


async def test_a_long_burst_is_written_before_it_ends() -> None:
    batcher = WriteBatcher()
    connection, transport = connected(batcher)
    connection.write(b"a")
    batcher.processed(TOKENS_MAX - 1)
    assert not transport.writes
    connection.write(b"b")
    batcher.processed(1)
    assert transport.writes == [b"2\r\nab\r\n"]
    await asyncio.sleep(0)
    assert len(transport.writes) == 1


async def test_what_came_before_the_headers_follows_them_and_the_end_waits_for_nothing() -> None:
    connection, transport = ClientConnection(GatewayConfig(), WriteBatcher()), Recorder()
    connection.write(b"a")
    assert connection.started.done()
    connection.attach(transport, chunked=False)
    assert transport.writes == [b"a"]
    connection.write(b"b")
    connection.end()
    assert transport.writes == [b"a", b"b"]
    assert connection.ended.done()


async def test_a_client_over_its_bytes_is_cut() -> None:
    connection, transport = connected(WriteBatcher(), slow_client_bytes_max=10)
    transport.stuck = True
    connection.write(b"a" * 8)
    connection.flush()
    connection.write(b"b" * 8)
    connection.flush()
    assert transport.aborted
    assert connection.cut_reason.startswith("slow client")
    connection.write(b"c")
    connection.flush()
    assert len(transport.writes) == 1


async def test_a_client_that_is_slow_for_too_long_is_cut_and_one_that_catches_up_begins_anew() -> (
    None
):
    connection, transport = connected(WriteBatcher(), slow_client_ms_max=1000)
    now = 50.0
    connection._now = lambda: now

    def write() -> bool:
        connection.write(b"a")
        connection.flush()
        return transport.aborted

    assert not write()
    transport.stuck = True
    assert not write()
    now += 0.9
    assert not write()
    transport.stuck = False
    assert not write()
    transport.stuck = True
    now += 5.0
    assert not write(), "its clock begins when it falls behind"
    now += 1.0
    assert not write()
    now += 0.1
    assert write()
    assert "slow client" in connection.cut_reason


async def test_a_client_that_takes_something_all_the_time_is_not_cut_and_one_that_stops_is() -> (
    None
):
    connection, transport = connected(WriteBatcher(), slow_client_ms_max=1000)
    transport.stuck = True
    now = 50.0
    connection._now = lambda: now
    for _ in range(20):
        connection.write(b"a" * 100)
        connection.write(b"b" * 100)
        connection.flush()
        now += 0.9
        assert not transport.aborted
        if len(transport.writes) > 1:
            transport.writes.pop(0)
    connection.write(b"c")
    connection.flush()
    assert not transport.aborted
    now += 1.1
    connection.write(b"d")
    connection.flush()
    assert transport.aborted


async def test_a_resumable_streams_client_is_not_cut_and_what_it_leaves_is_counted() -> None:
    limits = {"slow_client_ms_max": 1000, "slow_client_bytes_max": 10}
    connection, transport = connected(WriteBatcher(), patient=True, **limits)
    transport.stuck = True
    now = 50.0
    connection._now = lambda: now
    for _ in range(5):
        connection.write(b"a" * 10)
        connection.flush()
        now += 60.0
    connection.write(b"b" * 3)
    assert not transport.aborted
    assert connection.unsent == 5 * len(b"a\r\naaaaaaaaaa\r\n") + 3
    transport.stuck = False
    assert connection.unsent == 3

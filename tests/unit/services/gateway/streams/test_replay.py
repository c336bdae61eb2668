"""What a client that comes back is told, and when a stream is forgotten."""

from __future__ import annotations

import pytest

from common.errors import BatonError, Code
from services.gateway.streams.replay import GONE_MAX, ReplayTable, StreamReplay

KEEP_SECONDS = 60.0


class RecordingClient:
    """A client's connection."""

    def __init__(self) -> None:
        self.text = b""
        self.ended = False
        self.error: BatonError | None = None
        self.cut_reason = ""
        self.unsent = 0

    def write(self, payload: bytes) -> None:
        self.text += payload

    def refuse(self, error: BatonError) -> None:
        self.error = error

    def end(self) -> None:
        self.ended = True

    def cut(self, reason: str) -> None:
        self.cut_reason = reason


def event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


def numbered(*events: tuple[int, str]) -> bytes:
    return b"".join(f"id: {number}\ndata: {text}\n\n".encode() for number, text in events)


def follow(replay: StreamReplay, after: int = 0) -> RecordingClient:
    client = RecordingClient()
    replay.attach(client, after)
    return client


@pytest.fixture
def replays() -> ReplayTable:
    return ReplayTable(2, 1_000, KEEP_SECONDS, per_key_max=2)


@pytest.fixture
def replay(replays: ReplayTable) -> StreamReplay:
    return replays.open("r", "key")


def test_events_are_numbered_one_by_one(replay: StreamReplay) -> None:
    client = follow(replay)
    replay.write(event("a") + event("b"))
    replay.write(event("c"))
    assert client.text == numbered((1, "a"), (2, "b"), (3, "c"))


def test_who_comes_back_hears_what_is_new_and_then_goes_on(replay: StreamReplay) -> None:
    first = follow(replay)
    replay.write(event("a"))
    replay.detach(first, 1.0)
    replay.write(event("b") + event("c"))
    second = follow(replay, after=1)
    replay.write(event("d"))
    replay.end()
    assert first.text == numbered((1, "a"))
    assert second.text == numbered((2, "b"), (3, "c"), (4, "d"))
    assert second.ended
    assert not first.ended


def test_what_ended_meanwhile_is_told_to_its_end(replay: StreamReplay) -> None:
    replay.write(event("a"))
    replay.end()
    client = follow(replay)
    assert (client.text, client.ended) == (numbered((1, "a")), True)


def test_a_refusal_waits_for_its_client(replays: ReplayTable, replay: StreamReplay) -> None:
    error = BatonError(Code.NO_CAPACITY, "none")
    replay.refuse(error)
    client = follow(replays.find("r", "key"))
    assert client.error is error
    replays.release(replay, client, 1.0)
    assert len(replays) == 0


def test_the_later_connection_has_it(replays: ReplayTable, replay: StreamReplay) -> None:
    """The earlier is cut, not ended: an end would look like the whole answer."""
    first = follow(replay)
    replay.write(event("a"))
    second = follow(replay, after=1)
    assert "another connection" in first.cut_reason
    assert not first.ended
    replays.release(replay, first, 5.0)
    replay.write(event("b"))
    assert second.text == numbered((2, "b"))
    assert replays.expire(1_000.0) == []


def test_a_number_that_was_never_told_is_a_conflict(replay: StreamReplay) -> None:
    replay.write(event("a"))
    follow(replay, after=1)
    with pytest.raises(BatonError) as raised:
        follow(replay, after=2)
    assert raised.value.code is Code.STREAM_CONFLICT


def test_the_oldest_events_are_forgotten_over_the_bound(replay: StreamReplay) -> None:
    follow(replay)
    for _ in range(100):
        replay.write(event("x" * 40))
    kept = follow(replay, after=90).text
    assert kept.count(b"id: ") == 10
    with pytest.raises(BatonError, match="up to 8") as raised:
        follow(replay)
    assert raised.value.code is Code.STREAM_GONE


def test_without_a_client_nothing_is_dropped_that_was_not_sent(replays: ReplayTable) -> None:
    replay = replays.open("r", "key")
    client = follow(replay)
    for _ in range(10):
        replay.write(event("x" * 40))
    replays.release(replay, client, 1.0)
    for _ in range(8):
        replay.write(event("x" * 40))
    assert replays.full() == [], "what the client was sent makes room"
    for _ in range(100):
        replay.write(event("y" * 40))
    assert replays.full() == [replay]
    replay.end_full(event("nobody read it"))
    assert replays.full() == []
    back = follow(replay, after=10)
    numbers = numbers_of(back)
    assert numbers == list(range(11, 11 + len(numbers))), "no event is missing"
    assert 1_000 < len(back.text) < 1_300
    assert back.text.endswith(event("nobody read it"))
    assert back.ended


def numbers_of(client: RecordingClient) -> list[int]:
    return [int(line[4:]) for line in client.text.splitlines() if line.startswith(b"id: ")]


def test_a_client_that_takes_nothing_fills_it_as_one_that_left_does(replays: ReplayTable) -> None:
    replay = replays.open("r", "key")
    slow = follow(replay)
    for _ in range(100):
        slow.unsent = len(slow.text)
        replay.write(event("x" * 40))
    assert replays.full() == [replay]
    replay.end_full(event("nobody took it"))
    assert slow.ended
    assert not slow.cut_reason
    assert numbers_of(slow) == list(range(1, replay._last + 1))
    assert slow.text.endswith(event("nobody took it"))
    assert follow(replay).text == slow.text


def test_what_a_slow_client_has_taken_makes_room(replays: ReplayTable) -> None:
    """It is always some 600 of 1,000 bytes behind."""
    replay = replays.open("r", "key")
    slow = follow(replay)
    for _ in range(100):
        slow.unsent = min(len(slow.text), 600)
        replay.write(event("x" * 40))
    assert replays.full() == []
    replay.detach(slow, 1.0)
    got = slow.text[:-600]
    back = follow(replay, after=got.count(b"\n\n"))
    assert numbers_of(back)[-1] == 100


def test_what_a_client_did_not_take_before_it_left_is_kept(replays: ReplayTable) -> None:
    replay = replays.open("r", "key")
    slow = follow(replay)
    replay.write(event("x" * 40))
    for _ in range(9):
        slow.unsent = len(slow.text)
        replay.write(event("x" * 40))
    replay.detach(slow, 1.0)
    for _ in range(100):
        replay.write(event("y" * 40))
    assert replay.full
    assert numbers_of(follow(replay))[0] == 1


def test_what_a_client_says_it_missed_is_kept(replays: ReplayTable) -> None:
    replay = replays.open("r", "key")
    first = follow(replay)
    for _ in range(10):
        replay.write(event("x" * 40))
    back = follow(replay, after=2)
    assert first.cut_reason
    back.unsent = 1_000_000
    for _ in range(100):
        replay.write(event("y" * 40))
    assert replay.full
    assert numbers_of(follow(replay, after=2))[0] == 3


def test_a_key_has_its_share_of_streams() -> None:
    table = ReplayTable(10, 1_000, KEEP_SECONDS, per_key_max=2)
    first, _ = table.open("a", "key"), table.open("b", "key")
    with pytest.raises(BatonError, match="this key already has 2") as raised:
        table.open("c", "key")
    assert raised.value.code is Code.QUEUE_FULL
    table.open("c", "other")
    for name in "defg":
        table.open(name, "")
    first.end()
    table.open("h", "key")
    with pytest.raises(BatonError):
        table.find("a", "key")


def test_one_event_larger_than_the_bound_is_kept(replay: StreamReplay) -> None:
    replay.write(event("x" * 5_000))
    assert len(follow(replay).text) > 5_000


@pytest.mark.parametrize("ended", [True, False])
def test_what_nobody_comes_back_to_is_gone(replays: ReplayTable, *, ended: bool) -> None:
    replay = replays.open("r", "key")
    client = follow(replay)
    assert replays.expire(1_000.0) == []
    if ended:
        replay.end()
    replays.release(replay, client, 1_000.0)
    assert replays.expire(1_059.9) == []
    assert replays.expire(1_060.0) == ([] if ended else ["r"])
    with pytest.raises(BatonError, match="60 s") as raised:
        replays.find("r", "key")
    assert raised.value.code is Code.STREAM_GONE


def test_another_key_finds_nothing(replays: ReplayTable, replay: StreamReplay) -> None:
    for request_id, owner in (("r", "other"), ("s", "key")):
        with pytest.raises(BatonError) as raised:
            replays.find(request_id, owner)
        assert raised.value.code is Code.NOT_FOUND
    replays.release(replay, follow(replay), 0.0)
    replays.expire(100.0)
    with pytest.raises(BatonError) as raised:
        replays.find("r", "other")
    assert raised.value.code is Code.NOT_FOUND


def test_room_is_made_by_what_ended_and_by_nothing_else(replays: ReplayTable) -> None:
    first, second = replays.open("a", "key"), replays.open("b", "key")
    with pytest.raises(BatonError) as raised:
        replays.open("c", "key")
    assert raised.value.code is Code.QUEUE_FULL
    for replay in (second, first):
        replay.end()
        replays.release(replay, follow(replay), 2.0 if replay is second else 3.0)
    replays.open("c", "key")
    assert replays.find("a", "key") is first
    with pytest.raises(BatonError):
        replays.find("b", "key")


def test_what_is_remembered_as_gone_is_bounded(replays: ReplayTable) -> None:
    for number in range(GONE_MAX + 1):
        replay = replays.open(f"r{number}", "key")
        replays.release(replay, follow(replay), 0.0)
        replays.expire(100.0)
    for name, code in (("r0", Code.NOT_FOUND), ("r1", Code.STREAM_GONE)):
        with pytest.raises(BatonError) as raised:
            replays.find(name, "key")
        assert raised.value.code is code

"""A control message arrives as it was sent or not at all, and only from who said who he is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest

from common.errors import WireError
from common.kv.messages import ConnectedPeer, KvHello, KvPing, KvPong, KvReleased
from common.kv.peers.authentication import FaultSeals, Greeting, agree, key_id
from common.kv.peers.channel import (
    ALTERED,
    CONTROL_FRAME_BYTES,
    HEAD_BYTES,
    NOT_AUTHENTIC,
    NOT_PROVED,
    PENDING_MAX,
    Channel,
    ChannelEvents,
    ControlFrame,
    WorkerIdentity,
    pack_frame,
    unpack_frame,
)
from common.kv.peers.keepalive import Keepalive
from common.messages import WIRE_VERSION
from common.net.wire import encode

SEALS = FaultSeals()
BODY = bytes(range(200))


def test_what_is_packed_is_unpacked() -> None:
    for body in (b"x", BODY, b"y" * (CONTROL_FRAME_BYTES - HEAD_BYTES)):
        assert unpack_frame(pack_frame(body, SEALS), SEALS) == body


@pytest.mark.parametrize("at", [0, 3, 4, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + len(BODY) - 1])
def test_one_flipped_bit_anywhere_is_noticed(at: int) -> None:
    frame = pack_frame(BODY, SEALS)
    frame[at] ^= 16
    with pytest.raises(WireError):
        unpack_frame(frame, SEALS)


def test_a_frame_that_was_not_filled_is_noticed() -> None:
    """UCX reports a shorter message as a whole one: the rest is what stood there before."""
    frame = pack_frame(BODY, SEALS)
    frame[HEAD_BYTES + 10 :] = pack_frame(BODY[::-1], SEALS)[HEAD_BYTES + 10 :]
    with pytest.raises(WireError):
        unpack_frame(frame, SEALS)
    with pytest.raises(WireError):
        unpack_frame(np.zeros(CONTROL_FRAME_BYTES, np.uint8), SEALS)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(WireError):
        pack_frame(b"z" * (CONTROL_FRAME_BYTES - HEAD_BYTES + 1), SEALS)


# ---------------------------------------------------------------- two channels over a played link


class Link:
    """One end of a link: what is sent at one is received at the other, in order."""

    def __init__(self, tag: int) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        self.receive_tag, self.send_tag = tag, 0
        self.remote_greeting, self._greeting = b"", b""
        self.other: Link | None = None
        self.closed = self.late = False
        self.stuck = False
        self.sent: list[ControlFrame] = []
        self._opened: Callable[[str | None], None] = lambda _: None
        self._posted: list[tuple[ControlFrame, Callable[[str | None], None]]] = []
        self._arrived: list[ControlFrame] = []

    def open(self, done: Callable[[str | None], None], greeting: bytes) -> None:
        self._opened, self._greeting = done, greeting

    def meet(self, other: Link) -> None:
        self.other, self.send_tag = other, other.receive_tag
        self.remote_greeting = other._greeting

    def opened(self, error: str | None = None) -> None:
        self._opened(error)

    def send(self, frame: ControlFrame, tag: int, done: Callable[[str | None], None]) -> None:
        assert tag == self.send_tag
        self.sent.append(frame.copy())
        if self.other is not None:
            self.other.arrive(frame.copy())
        if not self.stuck:
            done(None)

    def receive(self, frame: ControlFrame, tag: int, done: Callable[[str | None], None]) -> None:
        assert tag == self.receive_tag
        self._posted.append((frame, done))
        self._match()

    def arrive(self, frame: ControlFrame) -> None:
        self._arrived.append(frame)
        self._match()

    def close(self) -> None:
        self.closed = True

    def close_later(self, _seconds: float) -> None:
        self.late = True

    def _match(self) -> None:
        while self._posted and self._arrived:
            (buffer, done), frame = self._posted.pop(0), self._arrived.pop(0)
            buffer[:] = frame
            done(None)


class Side:
    """A channel, and what it called."""

    def __init__(self, name: str, tag: int, secrets: Sequence[bytes], fingerprint: str) -> None:
        self.link, self.heard, self.refusals = Link(tag), list[msgspec.Struct](), list[str]()
        self.opened, self.closed = 0, list[tuple[str, bool]]()
        events = ChannelEvents(
            on_open=self._on_open,
            on_message=lambda _, message: self.heard.append(message),
            on_refused=lambda reason, _: self.refusals.append(reason),
            on_closed=lambda _, why, refused: self.closed.append((why, refused)),
        )
        self.channel = Channel(
            tag,
            self.link,  # type: ignore[arg-type]
            WorkerIdentity(name, f"inc-{name}", fingerprint),
            Keepalive(0.0, 1.0),
            events,
            secrets=lambda: secrets,
            segment_name=f"segment-{name}",
        )

    def _on_open(self, _channel: Channel) -> None:
        self.opened += 1


SECRET, OTHER = b"s" * 32, b"o" * 32
BOTH = [(), (SECRET,)]


def pair(
    known: Sequence[bytes] = (), theirs: Sequence[bytes] | None = None, fingerprint: str = "f"
) -> tuple[Side, Side]:
    """A P and a D, on whose link nothing was said yet."""
    p = Side("p0", 1, known, "f")
    d = Side("d0", 2, known if theirs is None else theirs, fingerprint)
    p.link.meet(d.link)
    d.link.meet(p.link)
    return p, d


def greeted(known: Sequence[bytes] = ()) -> tuple[Side, Side]:
    p, d = pair(known)
    p.link.opened()
    d.link.opened()
    return p, d


@pytest.mark.parametrize("known", BOTH)
def test_both_sides_open_once_and_know_the_other(known: Sequence[bytes]) -> None:
    p, d = greeted(known)
    assert p.channel.peer == ConnectedPeer(1, "d0", "inc-d0")
    assert d.channel.peer == ConnectedPeer(2, "p0", "inc-p0")
    assert d.channel.remote_segment_name == "segment-p0"
    assert (p.opened, d.opened, p.closed, d.closed) == (1, 1, [], [])


def test_a_closed_channel_lets_go_of_the_memory_of_its_peer() -> None:
    """Whoever still refers to the channel keeps no page of a process that may be gone."""
    _, d = greeted()
    d.channel.remote_segment = np.zeros(8, np.uint8)
    d.channel.close("the peer is gone")
    assert d.channel.remote_segment is None


@pytest.mark.parametrize("known", BOTH)
def test_what_is_said_after_the_hello_is_heard_in_order_and_pings_are_answered(
    known: Sequence[bytes],
) -> None:
    p, d = greeted(known)
    said = [KvReleased(number) for number in range(3)]
    for message in said:
        d.channel.send(message)
    d.channel.send(KvPing())
    assert p.heard == said
    assert len(p.link.sent) == 2, "its hello and a pong"
    assert d.heard == []


@pytest.mark.parametrize("known", BOTH)
def test_a_worker_of_another_fingerprint_is_refused_for_good_and_told(
    known: Sequence[bytes],
) -> None:
    p, d = pair(known, fingerprint="g")
    p.link.opened()
    d.link.opened()
    assert (p.opened, d.opened) == (0, 0)
    for side in (p, d):
        ((why, refused),) = side.closed
        assert refused
        assert "fingerprint" in why
    assert d.link.late, "so that the refusal arrives"


@pytest.mark.parametrize("known", BOTH)
def test_a_peer_that_speaks_before_its_hello_loses_the_link(known: Sequence[bytes]) -> None:
    p, d = pair(known)
    p.link.opened()
    seals = agree(known, d.channel._greeting, 2, Greeting.unpack(d.link.remote_greeting), 1)
    p.link.arrive(pack_frame(encode(KvReleased(1)), seals))
    assert (p.heard, p.opened) == ([], 0)
    assert [refused for _, refused in p.closed] == [False]
    assert p.link.closed


def test_a_second_hello_changes_nothing() -> None:
    p, d = greeted((SECRET,))
    d.channel.send(KvHello(WIRE_VERSION, "d1", "inc-d1", "f"))
    assert p.channel.peer == ConnectedPeer(1, "d0", "inc-d0")
    assert (p.opened, p.closed) == (1, [])


def test_a_peer_that_takes_no_messages_is_lost() -> None:
    p, _ = greeted()
    p.link.stuck = True
    for _ in range(PENDING_MAX):
        p.channel.send(KvPong())
    assert p.closed == []
    p.channel.send(KvPong())
    assert [why for why, _ in p.closed] == ["the peer takes no messages"]


@pytest.mark.parametrize(
    ("known", "theirs"), [((SECRET,), (OTHER,)), ((SECRET,), ()), ((), (SECRET,))]
)
def test_who_shares_no_secret_is_refused_by_both_before_a_word(
    known: Sequence[bytes], theirs: Sequence[bytes]
) -> None:
    p, d = pair(known, theirs)
    p.link.opened()
    d.link.opened()
    for side in (p, d):
        assert (side.link.sent, side.refusals, side.opened) == ([], [NOT_AUTHENTIC], 0)
        assert side.link.late, "so that the other side learns why"
        assert [refused for _, refused in side.closed] == [True]


def test_a_hello_under_a_forged_seal_is_never_read_and_may_be_tried_again() -> None:
    """It may have been damaged."""
    p, _ = pair((SECRET,))
    p.link.opened()
    p.link.arrive(pack_frame(encode(KvHello(WIRE_VERSION, "d0", "inc-d0", "f")), FaultSeals()))
    assert (p.refusals, p.channel.peer) == ([NOT_AUTHENTIC], None)
    assert p.closed == [(NOT_PROVED, False)]
    assert p.link.late


@pytest.mark.parametrize("change", ["altered", "repeated", "dropped", "swapped"])
def test_a_message_that_is_not_the_next_costs_the_link_which_may_be_tried_again(
    change: str,
) -> None:
    p, d = greeted((SECRET,))
    other, d.link.other = d.link.other, None
    assert other is p.link
    for number in range(2):
        d.channel.send(KvReleased(number))
    first, second = d.link.sent[-2:]
    if change == "altered":
        first[HEAD_BYTES + 3] ^= 1
    frames = {
        "altered": [first],
        "repeated": [first, first],
        "dropped": [second],
        "swapped": [second, first],
    }[change]
    for frame in frames:
        p.link.arrive(frame)
    assert p.heard == ([KvReleased(0)] if change == "repeated" else [])
    assert p.refusals == [NOT_AUTHENTIC]
    assert p.closed == [(ALTERED, False)]
    assert p.link.closed


def test_without_secrets_a_damaged_message_costs_the_link_and_accuses_nobody() -> None:
    p, d = greeted()
    d.link.other = None
    d.channel.send(KvReleased(1))
    d.link.sent[-1][HEAD_BYTES + 3] ^= 1
    p.link.arrive(d.link.sent[-1])
    assert (p.heard, p.refusals) == ([], [])
    assert [refused for _, refused in p.closed] == [False]


def test_a_link_stays_while_its_secret_does() -> None:
    p, _ = greeted((SECRET, OTHER))
    kept, retired = (
        ((SECRET,), (OTHER,))
        if p.channel._seals.key_id == key_id(SECRET)
        else ((OTHER,), (SECRET,))
    )
    p.channel.check_secret(kept)
    assert p.closed == []
    p.channel.check_secret(retired)
    assert [refused for _, refused in p.closed] == [False]
    unsealed, _ = greeted()
    unsealed.channel.check_secret(())
    assert unsealed.closed == []


def test_a_link_that_does_not_open_says_nothing() -> None:
    p, _ = pair((SECRET,))
    p.link.opened("no route")
    assert p.closed == [("no route", False)]
    assert p.link.sent == []

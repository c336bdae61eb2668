"""Who may stay connected to a listener, and for how long before he said who he is."""

from __future__ import annotations

from typing import Any

import pytest

from common.kv.messages import ConnectedPeer
from common.kv.peers.accepted import NO_HELLO, TOO_MANY, AcceptedLinks, LinkLimits, ListenerView
from common.kv.transport.listening_socket import Address

LIMITS = LinkLimits(hello_s=5.0, links_max=6, links_per_address_max=3, descriptors_reserved=10)


class Link:
    def __init__(self, host: str, port: int) -> None:
        self.address = host, port
        self.closed = False

    def remote(self) -> Address:
        return self.address

    def close(self) -> None:
        self.closed = True


class Made:
    """A channel of a link."""

    def __init__(self, number: int, link: Link, over: AcceptedLinks) -> None:
        self.id, self.link, self._over = number, link, over
        self.peer: ConnectedPeer | None = None

    def close(self, _why: str) -> None:
        self.link.close()
        self._over.forget(self)  # type: ignore[arg-type]


class Listener:
    """A listener's kernel, and what it accepted."""

    def __init__(self) -> None:
        self.strangers: set[Address] = set()
        self.ended: set[Address] = set()
        self.free = 1000
        self.refused: list[str] = []
        self.made: list[Made] = []
        view = ListenerView(self._connected, self._shut_down, lambda: self.free)
        self.links = AcceptedLinks(LIMITS, view, self._make, self._on_refused)

    def accept(self, host: str, now: float = 0.0) -> Link:
        link = Link(host, 1000 + len(self.made) + len(self.refused))
        self.links.accept(link, now)  # type: ignore[arg-type]
        return link

    def greeted(self, host: str, now: float = 0.0) -> Link:
        link = self.accept(host, now)
        self.made[-1].peer = ConnectedPeer(1, "d0", "i")
        return link

    def _connected(self) -> set[Address]:
        return self.strangers | {made.link.address for made in self.made if not made.link.closed}

    def _shut_down(self, remotes: set[Address]) -> None:
        self.ended |= remotes
        self.strangers -= remotes

    def _make(self, link: Any) -> Any:
        self.made.append(Made(len(self.made), link, self.links))
        return self.made[-1]

    def _on_refused(self, reason: str, sentence: str) -> None:
        assert sentence
        self.refused.append(reason)


@pytest.fixture
def listener() -> Listener:
    return Listener()


def test_a_silent_link_is_closed_when_its_time_is_over_and_not_before(listener: Listener) -> None:
    talking, silent, later = listener.greeted("a"), listener.accept("a"), listener.accept("a", 1.0)
    listener.links.check(4.9)
    assert listener.refused == []
    listener.links.check(5.0)
    assert (talking.closed, silent.closed, later.closed) == (False, True, False)
    assert listener.refused == [NO_HELLO]
    assert len(listener.links) == 2


def test_links_are_bounded_by_address(listener: Listener) -> None:
    kept = [listener.accept("a") for _ in range(3)]
    over = listener.accept("a")
    other = listener.accept("b")
    assert [link.closed for link in (*kept, over, other)] == [False] * 3 + [True, False]
    assert listener.refused == [TOO_MANY]
    listener.made[0].close("gone")
    assert not listener.accept("a").closed


def test_links_are_bounded_in_all_and_those_without_an_address_only_so(listener: Listener) -> None:
    kept = [listener.accept("") for _ in range(6)]
    assert not any(link.closed for link in kept)
    assert listener.accept("b").closed
    assert listener.refused == [TOO_MANY]


def test_a_link_is_refused_when_descriptors_are_short(listener: Listener) -> None:
    listener.free = 9
    assert listener.accept("a").closed
    listener.free = 10
    assert not listener.accept("a").closed


def test_a_stranger_has_as_much_time_as_a_link(listener: Listener) -> None:
    listener.greeted("a")
    listener.strangers = {("b", 1)}
    listener.links.check(1.0)
    listener.links.check(5.9)
    assert listener.ended == set()
    listener.links.check(6.0)
    assert listener.ended == {("b", 1)}
    assert listener.refused == [NO_HELLO]


def test_a_stranger_who_left_and_came_back_begins_anew(listener: Listener) -> None:
    listener.strangers = {("b", 1)}
    listener.links.check(0.0)
    listener.strangers = set()
    listener.links.check(3.0)
    listener.strangers = {("b", 1)}
    listener.links.check(5.0)
    listener.links.check(9.9)
    assert listener.ended == set()


def test_strangers_share_the_limits_of_links_and_the_newest_go(listener: Listener) -> None:
    listener.greeted("a")
    listener.strangers = {("a", 1)}
    listener.links.check(0.0)
    listener.strangers |= {("a", 2)}
    listener.links.check(0.5)
    listener.strangers |= {("a", 3), ("b", 4)}
    listener.links.check(1.0)
    assert listener.ended == {("a", 3)}
    listener.strangers |= {("c", 5), ("d", 6), ("e", 7)}
    listener.links.check(1.5)
    assert len(listener.strangers) + len(listener.links) == 6
    assert {("a", 1), ("a", 2), ("b", 4)} <= listener.strangers


def test_all_strangers_go_when_descriptors_are_short_and_no_link_does(listener: Listener) -> None:
    talking = listener.greeted("a")
    listener.strangers = {("b", 1), ("c", 2)}
    listener.free = 9
    listener.links.check(0.0)
    assert listener.ended == {("b", 1), ("c", 2)}
    assert not talking.closed


def test_it_asks_to_look_again_soon_while_somebody_has_not_said_who_he_is(
    listener: Listener,
) -> None:
    listener.greeted("a")
    assert not listener.links.check(0.0)
    silent = listener.accept("a")
    assert listener.links.check(1.0)
    silent.close()
    listener.made[-1].close("gone")
    assert not listener.links.check(1.5)
    listener.strangers = {("b", 1)}
    assert listener.links.check(2.0)
    listener.strangers = set()
    assert not listener.links.check(2.5)

"""When a worker's link to a router takes reports: after its Hello, and beats after the welcome."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from common.messages import Beat, Ended, Message, Role
from common.net.sockets import Sent
from common.net.wire import Decoder
from common.worker import router_links
from common.worker.router_links import RouterLink
from tests.rigs.messages import worker_hello

HELLO = worker_hello(Role.DECODE, "d0")
BEAT, ENDED = Beat(), Ended(request_id="r", attempt=1)


class Socket:
    """Keeps what is sent."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.kinds: list[type[Message]] = []
        self.full = False
        self._decoder: Decoder[Any] = Decoder(type(HELLO) | Beat | Ended)

    def send(self, frames: list[bytes]) -> Sent:
        if self.full:
            return Sent.FULL
        self.kinds.append(type(self._decoder.decode(frames[0])))
        return Sent.OK


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> RouterLink:
    monkeypatch.setattr(router_links, "Socket", Socket)
    return RouterLink(
        *("r0", "ipc:///nowhere", b"d0|1"),
        hello=lambda: [HELLO],
        on_frames=lambda _link, _frames: None,
        log=structlog.get_logger("test"),
    )


def sent(link: RouterLink) -> list[type[Message]]:
    socket: Any = link._socket
    kinds, socket.kinds = socket.kinds, []
    return list(kinds)


def test_reports_follow_the_hello_and_beats_the_welcome(link: RouterLink) -> None:
    for message in (BEAT, ENDED):
        link.send(message)
    assert sent(link) == [], "everything is reported anew after the Hello"
    link._on_connected()
    for message in (BEAT, ENDED):
        link.send(message)
    assert sent(link) == [type(HELLO), Ended], "a beat makes ready, so what is held comes first"
    link.welcomed()
    link.send(BEAT)
    assert sent(link) == [Beat]


def test_another_connection_begins_anew(link: RouterLink) -> None:
    link._on_connected()
    link.welcomed()
    sent(link)
    link._on_disconnected()
    for message in (BEAT, ENDED):
        link.send(message)
    assert sent(link) == []
    link._on_connected()
    link.send(BEAT)
    assert sent(link) == [type(HELLO)]


def test_a_worker_that_is_not_what_it_was_says_hello_again(link: RouterLink) -> None:
    link.greet()
    assert sent(link) == [], "nobody is there"
    link._on_connected()
    link.welcomed()
    sent(link)
    link.greet()
    link.send(BEAT)
    assert sent(link) == [type(HELLO)], "and beats when it is welcome again"


def test_a_hello_that_found_no_room_is_said_before_anything_else(link: RouterLink) -> None:
    socket: Any = link._socket
    link._on_connected()
    link.welcomed()
    sent(link)
    socket.full = True
    link.greet()
    link.send(ENDED)
    socket.full = False
    link.send(ENDED)
    link.send(ENDED)
    assert sent(link) == [type(HELLO), Ended, Ended]

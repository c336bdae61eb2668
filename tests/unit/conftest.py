"""A unit test starts no socket, thread or process: one that does belongs in tests/component.

Theory of operation: Python reports sockets and processes as audit events; threads and ZeroMQ
sockets are seen where they are made. While the fixtures and the body of a unit test run, the first
of them is noted, and fails the test. The timer of pytest-timeout starts before the fixtures, and
an event loop's own pair of sockets is never bound, so neither is seen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

FORBIDDEN = {
    "socket.bind": "binds a socket",
    "socket.connect": "connects a socket",
    "subprocess.Popen": "starts a process",
    "os.fork": "forks",
    "os.posix_spawn": "starts a process",
}


class Guard:
    """What the running unit test has started, if anything."""

    def __init__(self) -> None:
        self.active = False
        self.found = ""

    def audit(self, event: str, _args: tuple[object, ...]) -> None:
        if self.active and event in FORBIDDEN:
            self.note(FORBIDDEN[event])

    def note(self, sentence: str) -> None:
        """Other threads are those that tests of another kind left behind in this process."""
        if threading.current_thread() is threading.main_thread():
            self.found = self.found or sentence


GUARD = Guard()
sys.addaudithook(GUARD.audit)


def noted(call: Callable[..., Any], sentence: str) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:
        GUARD.note(sentence)
        return call(*args, **kwargs)

    return noting


@pytest.fixture(autouse=True)
def starts_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    start = noted(threading.Thread.start, "starts a thread")
    monkeypatch.setattr(threading.Thread, "start", start)
    make = noted(zmq.Context.socket, "makes a ZeroMQ socket")
    monkeypatch.setattr(zmq.Context, "socket", make)
    GUARD.active, GUARD.found = True, ""
    yield
    GUARD.active = False
    assert not GUARD.found, f"this test {GUARD.found}: it belongs in tests/component"

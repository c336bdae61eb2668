"""The guard of the unit tests sees what it forbids."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import zmq

from tests.unit.conftest import GUARD


def binds() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))


def makes_zeromq() -> None:
    with zmq.Context() as context, context.socket(zmq.REQ):
        pass


@pytest.mark.parametrize(
    ("start", "found"),
    [
        (binds, "binds a socket"),
        (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "starts a process"),
        (lambda: threading.Thread(target=print).start(), "starts a thread"),
        (makes_zeromq, "makes a ZeroMQ socket"),
    ],
)
def test_what_belongs_in_component_is_seen(start: Callable[[], object], found: str) -> None:
    start()
    seen, GUARD.found = GUARD.found, ""
    assert seen == found

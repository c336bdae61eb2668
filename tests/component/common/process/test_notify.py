"""The sd_notify protocol over a real unix datagram socket, as systemd's own end would see it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.process.notify import Notifier


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(5)
        yield channel


def received(channel: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in channel.recv(4096).decode().splitlines())


def test_each_state_is_one_datagram(supervisor: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": supervisor.getsockname()})
    notifier.ready("serves 3 workers")
    assert received(supervisor) == {"READY": "1", "STATUS": "serves 3 workers"}
    notifier.beat()
    assert received(supervisor) == {"WATCHDOG": "1"}
    notifier.reloading(1_234_567)
    assert received(supervisor) == {"RELOADING": "1", "MONOTONIC_USEC": "1234"}
    notifier.stopping()
    assert received(supervisor) == {"STOPPING": "1"}


def test_an_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        name = f"baton-test-{os.getpid()}"
        channel.bind(f"\0{name}")
        channel.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).status("loading")
        assert received(channel) == {"STATUS": "loading"}


def test_a_supervisor_that_is_away_for_a_moment_hears_the_next_state(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    notifier = Notifier({"NOTIFY_SOCKET": str(path)})
    notifier.ready("nobody listens")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(5)
        notifier.beat()
        assert received(channel) == {"WATCHDOG": "1"}


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_only_the_process_that_is_watched_beats(environ: dict[str, str], seconds: float) -> None:
    assert Notifier({"NOTIFY_SOCKET": "@x"} | environ).watchdog_seconds == seconds
    assert Notifier(environ).watchdog_seconds == 0.0

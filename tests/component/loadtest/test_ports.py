import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest import ports
from loadtest.ports import FIRST, LAST, free_port

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
PRINT_MANY = (
    "from loadtest import ports; import itertools, sys\n"
    "ports._numbers = itertools.cycle(range(ports.FIRST, ports.LAST))\n"
    "print(*[ports.free_port() for _ in range(20)], flush=True)\n"
    "sys.stdin.read()"
)
"""Both processes begin at the same port, and far enough from the end for the ports of both."""


def test_no_outgoing_connection_is_given_such_a_port() -> None:
    first = int(EPHEMERAL.read_text().split()[0])
    assert FIRST <= free_port() < LAST <= first


def test_two_processes_that_live_are_never_given_the_same_port() -> None:
    command = [sys.executable, "-c", PRINT_MANY]
    given: list[str] = []
    both = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        given += process.stdout.readline().split()
    for process in both:
        process.communicate()
    assert len(set(given)) == len(given) == 40


def test_a_port_at_which_somebody_listens_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", port))
        taken.listen()
        ports._reserved.pop().close()  # from here on only the listener says that it is taken
        monkeypatch.setattr(ports, "_numbers", itertools.chain([port], ports._numbers))
        assert free_port() != port

import socket
import subprocess
import sys
from pathlib import Path

from loadtest.ports import FIRST, LAST, free_port

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
PRINT_MANY = (
    "from loadtest import ports; import itertools, sys\n"
    "ports._numbers = itertools.cycle(range(int(sys.argv[1]), ports.LAST))\n"
    "print(*[ports.free_port() for _ in range(20)], flush=True)\n"
    "sys.stdin.read()"
)


def test_no_outgoing_connection_is_given_such_a_port() -> None:
    first = int(EPHEMERAL.read_text().split()[0])
    assert FIRST <= free_port() < LAST <= first


def test_two_processes_that_live_are_never_given_the_same_port() -> None:
    command = [sys.executable, "-c", PRINT_MANY, str(free_port())]
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


def test_a_port_at_which_somebody_listens_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", free_port() + 1))
        taken.listen()
        assert free_port() != taken.getsockname()[1]

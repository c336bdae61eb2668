"""What the kernel does for a listener of this process that is bound to every interface."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from common.kv.transport import listening_socket

FOREIGN = "203.0.113.5"
"""No machine has it: it is for documents (RFC 5737)."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0)) as made:
        made.settimeout(5.0)
        yield made


@pytest.fixture
def port(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_it_answers_at_its_host_and_nowhere_else(listener: socket.socket, port: int) -> None:
    assert listening_socket.restrict(port, "127.0.0.2")
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), 0.3)
    with socket.create_connection(("127.0.0.2", port), 5.0) as caller:
        caller.sendall(b"x")
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.recv(1) == b"x"


@pytest.mark.parametrize("host", ["0.0.0.0", FOREIGN, "no-such-name.invalid"])
def test_a_host_that_is_no_address_of_this_machine_restricts_nothing(
    listener: socket.socket, port: int, host: str
) -> None:
    assert not listening_socket.restrict(port, host)
    with socket.create_connection(("127.0.0.1", port), 5.0) as caller:
        caller.sendall(b"x")
        listener.accept()[0].close()


def test_who_says_nothing_is_not_accepted(listener: socket.socket, port: int) -> None:
    listening_socket.restrict(port, "127.0.0.1")
    silent = socket.create_connection(("127.0.0.1", port), 5.0)
    talking = socket.create_connection(("127.0.0.1", port), 5.0)
    talking.sendall(b"x")
    accepted, remote = listener.accept()
    with silent, talking, accepted:
        assert remote == talking.getsockname() != silent.getsockname()


def test_the_ends_of_its_connections_are_known_and_each_can_be_ended(
    listener: socket.socket, port: int
) -> None:
    callers = [socket.create_connection(("127.0.0.1", port), 5.0) for _ in range(2)]
    accepted = [listener.accept()[0] for _ in callers]
    ends = [caller.getsockname() for caller in callers]
    assert listening_socket.connected(port) == set(ends)
    listening_socket.shut_down(port, {ends[0]})
    assert callers[0].recv(1) == b""
    accepted[1].sendall(b"x")
    assert callers[1].recv(1) == b"x"
    for one in (*callers, *accepted):
        one.close()
    assert listening_socket.connected(port) == set()


def test_no_copy_of_a_descriptor_is_left(listener: socket.socket, port: int) -> None:
    before = listening_socket.free_descriptors()
    listening_socket.restrict(port, "127.0.0.1")
    listening_socket.connected(port)
    listening_socket.shut_down(port, {(FOREIGN, 1)})
    assert listening_socket.free_descriptors() == before
    with listener.dup():
        assert listening_socket.free_descriptors() == before - 1

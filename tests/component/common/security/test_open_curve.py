"""CURVE over real TCP: who is let in, who never reaches a handler, and keys that change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
import zmq

from common.config import Config, SecurityConfig
from common.errors import ConfigError
from common.net.sockets import Sent, new_key_pair
from common.security.files import NEXT_SECRET, PEERS, SECRET, read_secret
from common.security.open import open_curve
from tests.component.common.security.curve_rig import ANY_PORT, Hosts, counted
from tests.rigs.peers import WAIT_SECONDS, Peer


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    made = Hosts(tmp_path, "server", "worker")
    yield made
    made.close()


@pytest.fixture
async def server(hosts: Hosts) -> Peer:
    return hosts.end(hosts.curve("server"), "r0", bind=ANY_PORT)


class Stranger:
    """A foreign client's own socket."""

    def __init__(self, address: str, server_key: str, pair: tuple[str, str] | None = None) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.linger = 0
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 10)
        self.socket.setsockopt(zmq.IDENTITY, b"p0")
        public, secret = pair or new_key_pair()
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, public.encode())
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
        self.socket.connect(address)
        self.socket.send(b"let me in")

    def close(self) -> None:
        self.context.destroy(linger=0)


async def test_hosts_of_the_list_speak_both_ways(hosts: Hosts, server: Peer) -> None:
    worker = hosts.end(hosts.curve("worker"), "p0", connect=server.socket.address)
    await worker.up()
    for i in range(200):
        assert worker.socket.send([b"%d" % i])
    assert [await server.hear() for _ in range(200)] == [[b"p0", b"%d" % i] for i in range(200)]
    assert server.socket.send([b"p0", b"yes", b"body"])
    assert await worker.hear() == [b"yes", b"body"]


@pytest.mark.parametrize("reason", ["unknown_key", "bad_handshake"])
async def test_a_foreign_peer_never_reaches_the_handler(
    hosts: Hosts, server: Peer, reason: str
) -> None:
    (known,) = hosts.keys.peer("server").keys
    key = {"unknown_key": known, "bad_handshake": new_key_pair()[0]}[reason]
    strangers = [Stranger(server.socket.address, key) for _ in range(3)]
    await counted(hosts.curves[0], reason)
    assert server.calls == 0
    assert server.socket.send([b"p0", b"x"]) is Sent.GONE
    for stranger in strangers:
        stranger.close()


async def test_a_peer_without_curve_never_reaches_the_handler(hosts: Hosts, server: Peer) -> None:
    """By its own bytes (ZMTP 3.1, mechanism NULL), and staying, so that the server leaves first."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
    port = int(server.socket.address.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(greeting)
    await counted(hosts.curves[0], "plaintext")
    async with asyncio.timeout(WAIT_SECONDS):
        await reader.read()
    writer.close()
    assert server.calls == 0
    assert server.socket.send([b"p0", b"x"]) is Sent.GONE


async def test_bytes_that_are_no_handshake_do_no_harm(hosts: Hosts, server: Peer) -> None:
    port = int(server.socket.address.rsplit(":", 1)[1])
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(200), b"\xff" * 4096, b""):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.close()
        await writer.wait_closed()
    worker = hosts.end(hosts.curve("worker"), "p0", connect=server.socket.address)
    await worker.up()
    assert worker.socket.send([b"still served"])
    assert await server.hear() == [b"p0", b"still served"]
    assert server.calls == 1


async def test_a_client_speaks_to_no_server_but_the_one_the_list_names(hosts: Hosts) -> None:
    """Another host of the fleet, at the server's address, is not taken for it."""
    impostor = hosts.end(hosts.curve("worker"), "r0", bind=ANY_PORT)
    client_curve = hosts.curve("server")
    client = hosts.end(client_curve, "g0", connect=impostor.socket.address)
    await counted(client_curve, "wrong_server_key")
    assert not client.connected.is_set()
    assert client.socket.send([b"secret"]) is Sent.FULL
    assert impostor.calls == 0


async def test_a_key_added_later_is_let_in_without_a_restart(hosts: Hosts, server: Peer) -> None:
    hosts.keys.add("late", [])
    worker_curve = hosts.curve("late")
    worker = hosts.end(worker_curve, "p0", connect=server.socket.address)
    await counted(hosts.curves[0], "unknown_key")
    await counted(worker_curve, "refused_by_server")
    hosts.curves[0].refresh()
    await worker.up()
    assert worker.socket.send([b"in"])
    assert await server.hear() == [b"p0", b"in"]


async def test_a_revoked_key_is_silenced_at_once_and_cannot_come_back(
    hosts: Hosts, server: Peer
) -> None:
    other_curve, other_name = hosts.curve("server"), b"d0"
    worker = hosts.end(hosts.curve("worker"), "p0", connect=server.socket.address)
    other = hosts.end(other_curve, "d0", connect=server.socket.address)
    await worker.up()
    await other.up()
    assert worker.socket.send([b"before"])
    assert await server.hear() == [b"p0", b"before"]
    hosts.keys.revoke("worker")
    hosts.curves[0].refresh()
    assert worker.socket.send([b"after"])
    await counted(hosts.curves[0], "revoked_key")
    assert other.socket.send([b"the others go on"])
    assert await server.hear() == [other_name, b"the others go on"]
    assert server.calls == 2
    worker.socket.close()
    again = Stranger(
        server.socket.address,
        hosts.keys.peer("server").keys[0],
        _pair(hosts, "worker"),
    )
    await counted(hosts.curves[0], "unknown_key")
    assert server.calls == 2
    again.close()


async def test_a_clients_key_is_rotated_under_traffic(hosts: Hosts, server: Peer) -> None:
    address, gate = server.socket.address, hosts.curves[0]
    old = hosts.end(hosts.curve("worker"), "p0", connect=address)
    await old.up()
    hosts.keys.rotate("worker")
    gate.refresh()
    _switch(hosts, "worker")
    new = hosts.end(hosts.curve("worker"), "p1", connect=address)
    await new.up()
    for end in (old, new):
        assert end.socket.send([b"overlap"])
        assert await server.hear() == [end.identity, b"overlap"]
    hosts.keys.retire("worker")
    gate.refresh()
    assert old.socket.send([b"too late"])
    await counted(gate, "revoked_key")
    assert new.socket.send([b"goes on"])
    assert await server.hear() == [b"p1", b"goes on"]


async def test_an_address_that_the_list_gives_nobody_is_not_dialled(hosts: Hosts) -> None:
    curve = hosts.curve("worker")
    worker = hosts.end(curve, "p0", connect="tcp://192.0.2.1:7000")
    await counted(curve, "no_server_key", at_least=2)
    assert worker.socket.send([b"x"]) is Sent.FULL


async def test_clients_follow_a_server_to_its_new_key(hosts: Hosts, server: Peer) -> None:
    address, worker_curve = server.socket.address, hosts.curve("worker")
    worker = hosts.end(worker_curve, "p0", connect=address)
    await worker.up()
    hosts.keys.rotate("server")
    worker_curve.refresh()
    server.socket.close()
    await worker.down()
    _switch(hosts, "server")
    worker.connected.clear()
    again = hosts.end(hosts.curve("server"), "r0", bind=address)
    await worker.up()
    assert worker.socket.send([b"found you"])
    assert await again.hear() == [b"p0", b"found you"]


async def test_a_client_leaves_a_server_whose_key_is_revoked(hosts: Hosts, server: Peer) -> None:
    worker_curve = hosts.curve("worker")
    worker = hosts.end(worker_curve, "p0", connect=server.socket.address)
    await worker.up()
    hosts.keys.revoke("server")
    worker_curve.refresh()
    await worker.down()
    assert worker.socket.send([b"x"]) is Sent.FULL
    await counted(worker_curve, "wrong_server_key")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [("open", "chmod 0640"), ("gone", "baton keygen add"), ("stranger", "own key")],
)
def test_keys_that_cannot_be_used_are_one_clear_error(
    tmp_path: Path, spoil: str, says: str
) -> None:
    hosts = Hosts(tmp_path, "server", "worker")
    folder = tmp_path / "server"
    if spoil == "open":
        (folder / SECRET).chmod(0o644)
    elif spoil == "gone":
        (folder / PEERS).unlink()
    else:
        hosts.keys.revoke("worker")
        (tmp_path / "worker" / PEERS).write_bytes((folder / PEERS).read_bytes())
        folder = tmp_path / "worker"
    with pytest.raises(ConfigError, match=says):
        open_curve(
            Config(security=SecurityConfig(keys_dir=str(folder))), structlog.get_logger("test")
        )


def test_without_keys_there_is_no_curve() -> None:
    assert open_curve(Config(), structlog.get_logger("test")) is None


def _switch(hosts: Hosts, name: str) -> None:
    """What the operator does on the host whose key is replaced."""
    (hosts.folder / name / NEXT_SECRET).rename(hosts.folder / name / SECRET)


def _pair(hosts: Hosts, name: str) -> tuple[str, str]:
    secret = read_secret(hosts.folder / name / SECRET)
    return secret.public, secret.secret

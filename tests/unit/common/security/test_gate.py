"""ZAP questions: only one shape, with a key of the list, is answered with 200."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from zmq.utils import z85 as reference

from common.clock import ManualClock
from common.net.sockets import new_key_pair
from common.process.watched_file import WatchedFile
from common.security.files import HostKeys, PeersFile, write
from common.security.gate import Gate, z85
from common.security.open import read_allow_list
from common.security.peers import AllowList
from common.security.refusals import Refusals

LOG = structlog.get_logger("test")
KEY = new_key_pair()[0]
RAW = reference.decode(KEY)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    path = tmp_path / "peers.json"
    write(path, PeersFile(peers=[HostKeys(name="a", keys=[KEY])]))
    peers = WatchedFile(path, lambda p: read_allow_list(p, "a"), "peers", LOG)
    return Gate(peers, Refusals(LOG, ManualClock()))


def question(key: bytes = RAW, mechanism: bytes = b"CURVE", version: bytes = b"1.0") -> list[bytes]:
    return [version, b"7", b"baton", b"10.0.0.9", b"", mechanism, key]


def test_a_key_of_the_list_is_let_in_by_name(gate: Gate) -> None:
    assert gate.answer(question()) == [b"1.0", b"7", b"200", b"a", KEY.encode(), b""]
    assert gate.refusals.counts == {}


@pytest.mark.parametrize(
    "asked",
    [
        question(key=bytes(32)),
        question(key=RAW[:31]),
        question(key=RAW + b"\0"),
        question(key=KEY.encode()),
        question(mechanism=b"NULL"),
        question(mechanism=b"PLAIN"),
        question(version=b"1.1"),
        question()[:6],
        [*question(), b"more"],
        [b"1.0", b"7"],
        [],
    ],
)
def test_anything_else_is_refused_and_counted(gate: Gate, asked: list[bytes]) -> None:
    answer = gate.answer(asked)
    assert answer[:1] + answer[2:3] == [b"1.0", b"400"]
    assert len(answer) == 6
    assert gate.refusals.counts == {"unknown_key": 1}


def test_a_key_that_is_no_longer_in_the_list_speaks_for_no_host(gate: Gate) -> None:
    assert gate.host_of(KEY) == "a"
    assert gate.host_of(new_key_pair()[0]) is None
    assert gate.refusals.counts == {"revoked_key": 1}


def test_a_flood_is_counted_whole_and_said_seldom() -> None:
    said: list[str] = []

    class Log:
        def warning(self, event: str, **_: object) -> None:
            said.append(event)

    clock = ManualClock()
    refusals = Refusals(Log(), clock)  # type: ignore[arg-type]
    for _ in range(1000):
        refusals.add("plaintext", "a peer spoke without CURVE")
    assert (len(said), refusals.counts) == (1, {"plaintext": 1000})
    clock.advance(10.0)
    refusals.add("plaintext", "a peer spoke without CURVE")
    assert len(said) == 2


def test_z85_is_that_of_zeromq() -> None:
    for _ in range(100):
        public = new_key_pair()[0]
        assert z85(reference.decode(public)) == public


def test_the_newest_key_of_an_address_is_tried_first_and_loopback_is_our_own() -> None:
    old, new, ours = (new_key_pair()[0] for _ in range(3))
    peers = [
        HostKeys(name="b", keys=[old, new], addresses=["10.0.0.2", "fd00::2", "node-b"]),
        HostKeys(name="a", keys=[ours]),
    ]
    allowed = AllowList(PeersFile(peers=peers), "a")
    for endpoint in ("tcp://10.0.0.2:7000", "tcp://[fd00::2]:7000", "tcp://node-b:1"):
        assert allowed.keys_at(endpoint) == [new, old]
    assert allowed.keys_at("tcp://127.0.0.1:7000") == [ours]
    assert allowed.keys_at("tcp://10.0.0.3:7000") == []
    assert (allowed.name_of(old), allowed.name_of("x")) == ("b", None)


def test_each_key_of_a_server_has_its_turn_the_newest_first(tmp_path: Path) -> None:
    older, newer = (new_key_pair()[0] for _ in range(2))
    path = tmp_path / "peers.json"
    rotating = HostKeys(name="r", keys=[older, newer], addresses=["10.0.0.1"])
    write(path, PeersFile(peers=[HostKeys(name="a", keys=[KEY]), rotating]))
    peers = WatchedFile(path, lambda p: read_allow_list(p, "a"), "peers", LOG)
    gate = Gate(peers, Refusals(LOG, ManualClock()))
    tried = [gate.server_key("tcp://10.0.0.1:7000", tries) for tries in range(4)]
    assert tried == [newer, older, newer, older]
    assert gate.server_key("tcp://127.0.0.1:7000", 3) == KEY
    assert gate.server_key("tcp://10.0.0.9:7000", 0) == ""

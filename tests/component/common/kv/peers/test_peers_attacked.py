"""What reaches a KV listener from outside the fleet, and what is left of the listener then."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import structlog

from common.config import KvConfig
from common.errors import BatonError
from common.kv.checksum.header import HEADER_BYTES, payload_digest
from common.kv.checksum.kernel import sum_of
from common.kv.kv_thread import KvThread
from common.kv.layout import HostMemory
from common.kv.messages import KvReady
from common.kv.peers.authentication import FaultSeals, Greeting
from common.kv.peers.channel import HEAD_BYTES, pack_frame
from common.kv.staging.loans import LOAN_LANE
from common.kv.transport import listening_socket, ucx
from common.net.wire import Decoder, encode
from common.security.files import KvSecrets, write
from tests.component.common.kv.peers.stranger import HELLO, SECONDS, Stranger
from tests.component.common.kv.service_peer import (
    CONFIG,
    GEOMETRY,
    LAYERS,
    drained,
    filled,
    make_service,
    ticket,
)

LINKS_MAX = 4
DIGESTED = struct.Struct("<QIIIHHQQQ")
"""A header's fields from the transfer to the early bytes."""
SECRETS = (b"s" * 32, b"t" * 32)
STRICT = msgspec.structs.replace(
    CONFIG,
    transports="tcp,self",
    hello_ms=1500.0,
    links_per_address_max=LINKS_MAX,
    descriptors_reserved=0,
)
UNHURRIED = msgspec.structs.replace(STRICT, hello_ms=60_000.0)


def secrets_file(folder: Path, *secrets: bytes) -> str:
    path = folder / "kv.json"
    write(path, KvSecrets(secrets=[secret.hex() for secret in secrets]))
    return str(path)


class Attacked:
    """A service, and those who attack it."""

    def __init__(self, config: KvConfig, path: str = "") -> None:
        base = np.zeros(GEOMETRY.end, np.uint8)
        self.service, self.address = make_service("p0", base, config, secrets_file=path)
        self.stranger = Stranger(self.address)

    @property
    def refused(self) -> dict[str, int]:
        return dict(self._kv_thread._refusals.counts)

    @property
    def links(self) -> int:
        return len(self._kv_thread._accepted)

    @property
    def greeted(self) -> list[str]:
        peers = [channel.peer for channel in self._kv_thread._accepted.channels()]
        return [peer.name for peer in peers if peer is not None]

    @property
    def _kv_thread(self) -> KvThread:
        assert self.service._kv_thread is not None
        return self.service._kv_thread

    def connections(self) -> int:
        return len(listening_socket.connected(self.stranger.address[1]))

    def close(self) -> None:
        self.stranger.close()
        self.service.stop()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not check():  # noqa: ASYNC110 - what another thread counts has no event
            await asyncio.sleep(0.01)


@pytest.fixture
async def strict() -> AsyncIterator[Attacked]:
    attacked = Attacked(STRICT)
    yield attacked
    attacked.close()


@pytest.fixture
async def unhurried() -> AsyncIterator[Attacked]:
    attacked = Attacked(UNHURRIED)
    yield attacked
    attacked.close()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Attacked]:
    attacked = Attacked(UNHURRIED, secrets_file(tmp_path, *SECRETS))
    yield attacked
    attacked.close()


async def test_a_link_that_says_nothing_is_closed(strict: Attacked) -> None:
    talking, seals = await strict.stranger.introduce()
    talking.say_hello(seals)
    await until(lambda: strict.greeted == ["d9"])
    silent = strict.stranger.connect()
    opened = await strict.stranger.open(Greeting.of(()).pack())
    await silent.lost()
    await opened.lost()
    assert strict.refused == {"no_hello": 2}
    assert (strict.greeted, talking.alive) == (["d9"], True)


@pytest.mark.parametrize("said", [b"x", b"GET / HTTP/1.1\r\nHost: kv\r\n\r\n" + bytes(64)])
async def test_a_connection_that_never_becomes_a_link_is_shut_down(
    strict: Attacked, said: bytes
) -> None:
    """UCX waits for the rest for ever."""
    connection = strict.stranger.say(said)
    await until(lambda: strict.refused == {"no_hello": 1})
    connection.settimeout(SECONDS)
    assert await asyncio.to_thread(connection.recv, 1) == b""
    await until(lambda: strict.connections() == 0)


async def test_connections_that_say_nothing_cost_the_listener_nothing(unhurried: Attacked) -> None:
    for _ in range(100):
        unhurried.stranger.say(b"")
    talking, seals = await unhurried.stranger.introduce()
    talking.say_hello(seals)
    await until(lambda: unhurried.greeted == ["d9"])
    assert unhurried.connections() == 1


async def test_links_of_one_address_are_bounded_and_the_first_stay(unhurried: Attacked) -> None:
    talking, seals = await unhurried.stranger.introduce()
    talking.say_hello(seals)
    await until(lambda: unhurried.greeted == ["d9"])
    others = [unhurried.stranger.connect() for _ in range(20)]
    await until(lambda: unhurried.refused.get("too_many_links", 0) >= 21 - LINKS_MAX)
    await until(lambda: sum(other.alive for other in others) < LINKS_MAX)
    assert 1 <= unhurried.links <= LINKS_MAX
    assert talking.alive
    for other in others:
        other.link.close()
    await until(lambda: unhurried.links == 1)
    again, seals = await unhurried.stranger.introduce()
    again.say_hello(seals)
    await until(lambda: unhurried.greeted == ["d9", "d9"])


async def test_half_a_message_each_from_hundreds_of_connections_leaves_a_few(
    unhurried: Attacked,
) -> None:
    talking, seals = await unhurried.stranger.introduce()
    talking.say_hello(seals)
    await until(lambda: unhurried.greeted == ["d9"])
    for _ in range(300):
        unhurried.stranger.say(b"x")
    await until(lambda: unhurried.refused.get("too_many_links", 0) > 300 - LINKS_MAX)
    await until(lambda: unhurried.connections() <= LINKS_MAX)
    assert talking.alive


async def test_descriptors_are_kept_for_the_fleet() -> None:
    attacked = Attacked(msgspec.structs.replace(UNHURRIED, descriptors_reserved=1 << 30))
    try:
        await attacked.stranger.connect().lost()
        attacked.stranger.say(b"x")
        await until(lambda: attacked.refused == {"too_many_links": 2})
        await until(lambda: attacked.connections() == 0)
    finally:
        attacked.close()


async def test_a_listener_answers_at_its_own_address_only(unhurried: Attacked) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(_connect_briefly, unhurried, "127.0.0.2")
    await asyncio.to_thread(_connect_briefly, unhurried, "127.0.0.1")


def _connect_briefly(attacked: Attacked, host: str) -> None:
    socket.create_connection((host, attacked.stranger.address[1]), 0.5).close()


# ---------------------------------------------------------------- the fleet's secret


@pytest.mark.parametrize("known", [SECRETS, SECRETS[:1], SECRETS[1:], SECRETS[::-1]])
async def test_who_knows_a_secret_of_the_fleet_is_heard(
    guarded: Attacked, known: tuple[bytes, ...]
) -> None:
    link, seals = await guarded.stranger.introduce(known)
    link.say_hello(seals)
    await until(lambda: guarded.greeted == ["d9"])
    assert guarded.refused == {}


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What services decode of their peers."""
    seen: list[bytes] = []
    decode = Decoder.decode

    def noting(decoder: Decoder[object], body: bytes) -> object:
        seen.append(body)
        return decode(decoder, body)

    monkeypatch.setattr(Decoder, "decode", noting)
    return seen


async def test_nothing_is_decoded_of_who_does_not_know_it(
    guarded: Attacked, decoded: list[bytes]
) -> None:
    """Of a stranger who says no secret, another one, or the right one without knowing it."""
    with structlog.testing.capture_logs() as logs:
        named_none = await guarded.stranger.open(Greeting.of(()).pack())
        named_another = await guarded.stranger.open(Greeting.of([b"u" * 32]).pack())
        named_the_right_one = await guarded.stranger.open(Greeting.of(SECRETS).pack())
        for link in (named_none, named_another, named_the_right_one):
            link.say_hello(FaultSeals())
        for link in (named_none, named_another, named_the_right_one):
            await link.lost()
    assert guarded.refused == {"not_authentic": 3}
    assert guarded.greeted == []
    assert decoded == []
    assert [entry["event"] for entry in logs] == ["peer.refused"]
    assert "127.0.0.1" in logs[0]["sentence"]


async def test_a_worker_without_secret_takes_nobody_who_asks_for_one(unhurried: Attacked) -> None:
    link = await unhurried.stranger.open(Greeting.of(SECRETS).pack())
    await link.lost()
    assert unhurried.refused == {"not_authentic": 1}


async def test_a_recorded_hello_is_worth_nothing_on_another_link(guarded: Attacked) -> None:
    greeting = Greeting.of(SECRETS)
    genuine, seals = await guarded.stranger.introduce(SECRETS)
    recorded = pack_frame(encode(HELLO), seals)
    genuine.send(recorded)
    await until(lambda: guarded.greeted == ["d9"])
    replayed = await guarded.stranger.open(greeting.pack())
    replayed.send(recorded)
    await replayed.lost()
    assert (guarded.refused, guarded.links) == ({"not_authentic": 1}, 1)


async def test_what_the_listener_said_is_worth_nothing_when_it_hears_it(guarded: Attacked) -> None:
    """Its own greeting and hello are sent back to it."""
    link = guarded.stranger.connect()
    opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    link.link.open(opened.set_result, Greeting.of(SECRETS).pack())
    async with asyncio.timeout(SECONDS):
        assert await opened is None
    link.send(await link.receive())
    await link.lost()
    assert (guarded.refused, guarded.greeted) == ({"not_authentic": 1}, [])


async def test_a_message_that_comes_twice_costs_the_link(guarded: Attacked) -> None:
    link, seals = await guarded.stranger.introduce(SECRETS)
    frame = pack_frame(encode(HELLO), seals)
    link.send(frame)
    link.send(frame)
    await link.lost()
    assert guarded.refused == {"not_authentic": 1}
    assert guarded.service.drain() == []


async def test_a_link_of_a_retired_secret_is_closed(tmp_path: Path, guarded: Attacked) -> None:
    old, old_seals = await guarded.stranger.introduce(SECRETS[:1])
    new, new_seals = await guarded.stranger.introduce(SECRETS[1:])
    old.say_hello(old_seals)
    new.say_hello(new_seals)
    await until(lambda: len(guarded.greeted) == 2)
    secrets_file(tmp_path, SECRETS[1])
    await old.lost()
    assert new.alive
    assert guarded.greeted == ["d9"]
    late = await guarded.stranger.open(Greeting.of(SECRETS[:1]).pack())
    await late.lost()
    assert guarded.refused == {"not_authentic": 1}


def test_a_service_without_its_secret_does_not_start(tmp_path: Path) -> None:
    base = np.zeros(GEOMETRY.end, np.uint8)
    with pytest.raises(BatonError, match="baton keygen"):
        make_service("p0", base, STRICT, secrets_file=str(tmp_path / "kv.json"))


async def test_a_message_that_somebody_changed_on_the_way_is_not_followed(
    guarded: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He makes a sound frame of it, as far as he can: it asks for other blocks."""
    decoder: Decoder[KvReady] = Decoder(KvReady)
    changed: list[bytes] = []
    send = ucx.UcxLink.send

    def change(link: ucx.UcxLink, frame: ucx.Buffer, tag: int, done: ucx.Done) -> None:
        body = frame[HEAD_BYTES : HEAD_BYTES + int(frame[:4].view("<u4")[0])].tobytes()
        if not tag & ucx.DATA_TAG and not changed and b"KvReady" in body:
            changed.append(body)
            ready = msgspec.structs.replace(decoder.decode(body), first_block=1, blocks=1)
            frame = pack_frame(encode(ready), FaultSeals())
        send(link, frame, tag, done)

    monkeypatch.setattr(ucx.UcxLink, "send", change)
    path = secrets_file(tmp_path, *SECRETS)
    held = np.zeros(GEOMETRY.end, np.uint8)
    decode, _ = make_service("d0", held, UNHURRIED, secrets_file=path)
    try:
        handed = ticket("r", guarded.address)
        guarded.service.offer(handed, 4)
        guarded.service.progress(("r", 0), [0, 1, 2, 3], 4)
        decode.fetch(handed, 0, [4, 5, 6, 7])
        (end,) = await asyncio.to_thread(drained, decode)
    finally:
        decode.stop()
    assert changed
    assert (end.error, end.report.retries, end.report.blocks) == ("", 1, 4)
    assert guarded.refused == {"not_authentic": 1}


async def test_kv_that_somebody_changed_on_the_way_is_not_used(
    guarded: Attacked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He makes the digest fit, as far as he can."""
    changed: list[int] = []
    send = ucx.UcxLink.send

    def change(link: ucx.UcxLink, message: ucx.Buffer, tag: int, done: ucx.Done) -> None:
        if tag & ucx.DATA_TAG and message.nbytes > HEADER_BYTES and not changed:
            changed.append(tag)
            message[HEADER_BYTES] ^= 1
            fields = DIGESTED.unpack_from(message.data, 8)
            transfer, index, early_bytes = fields[0], fields[1], fields[-1]
            digest = payload_digest(sum_of(message[HEADER_BYTES:]), transfer, index, early_bytes)
            DIGESTED.pack_into(message.data, 8, *fields[:-2], digest, early_bytes)
        send(link, message, tag, done)

    monkeypatch.setattr(ucx.UcxLink, "send", change)
    held = np.zeros(GEOMETRY.end, np.uint8)
    path = secrets_file(tmp_path, *SECRETS)
    decode, _ = make_service("d0", held, UNHURRIED, secrets_file=path)
    try:
        handed = ticket("r", guarded.address)
        guarded.service.offer(handed, 4)
        guarded.service.progress(("r", 0), [0, 1, 2, 3], 4)
        decode.fetch(handed, 0, [4, 5, 6, 7])
        (end,) = await asyncio.to_thread(drained, decode)
    finally:
        decode.stop()
    assert changed
    assert (end.error, end.report.digest_mismatches, end.report.refetches) == ("", 1, 1)
    assert not held.any(), "what P holds is zeros"


@pytest.mark.parametrize("transports", ["tcp,sm,self", "tcp,self"], ids=["loaned", "sent"])
async def test_workers_that_share_a_secret_hand_kv_over(tmp_path: Path, transports: str) -> None:
    config = msgspec.structs.replace(UNHURRIED, transports=transports)
    path = secrets_file(tmp_path, *SECRETS)
    source, held = filled(1), np.zeros(GEOMETRY.end, np.uint8)
    prefill, address = make_service("p0", source, config, secrets_file=path)
    decode, _ = make_service("d0", held, config, secrets_file=path)
    blocks = list(range(8))
    try:
        handed = ticket("r", address)
        prefill.offer(handed, len(blocks))
        prefill.progress(("r", 0), blocks, len(blocks))
        decode.fetch(handed, 0, blocks)
        (end,) = await asyncio.to_thread(drained, decode)
        assert decode._kv_thread is not None
        lanes = decode._kv_thread.receive_side.connections.lanes()["p0"]
    finally:
        decode.stop()
        prefill.stop()
    assert (end.error, end.report.retries, end.report.digest_mismatches) == ("", 0, 0)
    assert (LOAN_LANE in lanes) == (transports == "tcp,sm,self")
    got, sent = (HostMemory(base, GEOMETRY) for base in (held, source))
    for layer in range(LAYERS):
        for block in blocks:
            assert np.array_equal(got.page(layer, block), sent.page(layer, block))

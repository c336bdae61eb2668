"""Real ZeroMQ over ipc: delivery, disconnects found at once, and bounded queues."""

import asyncio
import random
import stat
from pathlib import Path

import pytest

from common.errors import BatonError
from common.net.endpoints import CONTROL, STREAM, Endpoint, Pattern
from common.net.sockets import Sent, Socket
from tests.rigs.peers import WAIT_SECONDS, Peer


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s.sock"


async def test_messages_arrive_both_ways_in_order(address: str) -> None:
    router, dealer = Peer(address), Peer(address, identity="p0")
    server, client = router.socket, dealer.socket
    await dealer.up()
    for i in range(1000):
        assert client.send([b"%d" % i])
    received = [await router.hear() for _ in range(1000)]
    assert received == [[b"p0", b"%d" % i] for i in range(1000)]
    assert server.send([b"p0", b"a", b"b"])
    assert await dealer.hear() == [b"a", b"b"]
    client.close()
    server.close()


async def test_bodies_with_images_arrive_both_ways_as_they_were(address: str) -> None:
    router, dealer = Peer(address), Peer(address, identity="p0")
    await dealer.up()
    bodies = [random.Random(seed).randbytes(3 << 20) for seed in range(4)]
    for body in bodies:
        assert dealer.socket.send([b"submit", body])
    assert [await router.hear() for _ in bodies] == [[b"p0", b"submit", body] for body in bodies]
    for body in bodies:
        assert router.socket.send([b"p0", b"prefill", body])
    assert [await dealer.hear() for _ in bodies] == [[b"prefill", body] for body in bodies]
    dealer.close()
    router.close()


async def test_sending_to_a_stranger_or_the_dead_says_gone(address: str) -> None:
    router = Peer(address)
    server = router.socket
    assert server.send([b"nobody", b"x"]) is Sent.GONE
    dealer = Peer(address, identity="p0")
    await dealer.up()
    dealer.send_frames(b"hello")
    await router.hear()
    dealer.close()
    async with asyncio.timeout(WAIT_SECONDS):
        while server.send([b"p0", b"x"]) is not Sent.GONE:  # noqa: ASYNC110 - the kernel's close
            await asyncio.sleep(0.005)
    server.close()


async def test_a_dealer_hears_of_its_servers_end_and_queues_nothing_for_later(address: str) -> None:
    router, dealer = Peer(address), Peer(address, identity="p0")
    server, client = router.socket, dealer.socket
    await dealer.up()
    server.close()
    await dealer.down()
    async with asyncio.timeout(WAIT_SECONDS):
        while client.send([b"stale"]) is not Sent.FULL:  # noqa: ASYNC110 - its pipe ends a little later
            await asyncio.sleep(0.005)
    dealer.connected.clear()
    again = Peer(address)
    await dealer.up()
    assert client.send([b"fresh"])
    assert await again.hear() == [b"p0", b"fresh"]
    client.close()
    again.close()


async def test_a_full_queue_says_full_and_never_waits(address: str) -> None:
    tight = Endpoint("tight", Pattern.ROUTER, Pattern.DEALER, hwm=4)
    silent = Socket(tight, bind=address, on_frames=lambda _: None)
    dealer = Peer(address, endpoint=tight, identity="p0")
    client = dealer.socket
    await dealer.up()
    sends = [client.send([bytes(100_000)]) for _ in range(200)]
    assert sends[0] is Sent.OK
    assert sends[-1] is Sent.FULL
    client.close()
    silent.close()


async def test_ipc_sockets_are_private_to_owner_and_group(address: str, tmp_path: Path) -> None:
    server = Peer(address)
    assert stat.S_IMODE((tmp_path / "s.sock").stat().st_mode) == 0o660
    server.close()


async def test_an_address_that_cannot_be_bound_is_one_clear_error() -> None:
    with pytest.raises(BatonError, match=r"cannot bind tcp://192\.0\.2\.1:1"):
        Peer("tcp://192.0.2.1:1")


@pytest.mark.parametrize("endpoint", [STREAM, CONTROL], ids=lambda endpoint: endpoint.name)
async def test_frames_over_the_limit_do_not_reach_the_handler(
    address: str, endpoint: Endpoint
) -> None:
    router = Peer(address, endpoint=endpoint)
    dealer = Peer(address, endpoint=endpoint, identity="p0")
    server, client = router.socket, dealer.socket
    await dealer.up()
    client.send([bytes(endpoint.frame_bytes_max + 1)])
    await dealer.down()
    assert router.inbox.empty()
    client.close()
    server.close()

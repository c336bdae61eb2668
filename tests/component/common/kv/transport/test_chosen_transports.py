"""What UCX chose is read from UCX itself, and shared memory is chosen inside a host."""

from __future__ import annotations

import asyncio

import pytest

from common.kv.transport.chosen_transports import (
    crosses_by_tcp_only,
    reaches_cards,
    wants_more_than_tcp,
)
from common.kv.transport.ucx import UcxLink, UcxWorker


async def lanes_over(transports: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lanes of both ends of one connection, and that a closed link has none."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[UcxLink] = loop.create_future()
    opened: asyncio.Future[str | None] = loop.create_future()

    def accept(link: UcxLink) -> None:
        link.open(lambda _: accepted.set_result(link))

    listener, dialler = UcxWorker(transports, accept), UcxWorker(transports, lambda _: None)
    listener.start()
    dialler.start()
    link = dialler.connect("127.0.0.1", listener.listen(0))
    link.open(opened.set_result)
    async with asyncio.timeout(10):
        assert await opened is None
        other = await accepted
    both = link.lanes(), other.lanes()
    for end in (link, other):
        end.close()
        assert end.lanes() == ()
    listener.close()
    dialler.close()
    return both


def test_shared_memory_is_used_inside_a_host() -> None:
    for lanes in asyncio.run(lanes_over("tcp,sm,self")):
        assert any(lane.split("/")[0] in {"sysv", "posix"} for lane in lanes)
        assert not crosses_by_tcp_only(lanes)


def test_tcp_alone_is_reported_as_such() -> None:
    for lanes in asyncio.run(lanes_over("tcp")):
        assert lanes
        assert crosses_by_tcp_only(lanes)


@pytest.mark.parametrize(
    ("transports", "expected"),
    [
        ("tcp,sm,self", False),
        ("tcp", False),
        ("rc,sm,self", True),
        ("tcp, cuda_ipc, cuda_copy, sm", False),
        ("rc, tcp, cuda_ipc", True),
        ("all", True),
    ],
)
def test_what_was_asked_for(transports: str, expected: bool) -> None:
    assert wants_more_than_tcp(transports) is expected


@pytest.mark.parametrize(
    ("lanes", "gpudirect", "expected"),
    [
        (("sysv/memory", "tcp/lo", "cuda_ipc/cuda"), False, True),
        (("sysv/memory", "tcp/lo"), True, False),
        (("rc_mlx5/mlx5_0:1",), True, True),
        (("rc_mlx5/mlx5_0:1", "tcp/eth0"), False, False),
        ((), True, False),
    ],
)
def test_which_connections_go_from_card_to_card(
    lanes: tuple[str, ...], gpudirect: bool, expected: bool
) -> None:
    assert reaches_cards(lanes, gpudirect=gpudirect) is expected

"""What the transport does with endpoints that fail at a bad moment."""

from __future__ import annotations

import asyncio

from common.kv.ucx import Link, Ucx


class _Closing:
    """An endpoint whose peer died while it connected, as UCXX shows it."""

    alive = False

    def set_close_callback(self, *_: object) -> None:
        raise RuntimeError("Endpoint is closing or has already closed.")


async def test_a_peer_that_dies_while_it_connects_costs_its_link_and_nothing_else() -> None:
    accepted: list[Link] = []
    lost = asyncio.Event()

    def accept(link: Link) -> None:
        link.on_lost = lost.set
        accepted.append(link)

    ucx = Ucx("tcp,self", accept)
    ucx.start()
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    ucx._accepted(_Closing())
    async with asyncio.timeout(5):
        await lost.wait()
    assert accepted[0].lost
    assert failures == []
    ucx.close()

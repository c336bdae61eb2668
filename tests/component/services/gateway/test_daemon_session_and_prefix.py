"""What a gateway says of a request for the router to place it by."""

from __future__ import annotations

import asyncio

import msgspec

from common.messages import Submit
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from tests.component.services.gateway.rig import Rig, refuse_with
from tests.rigs.peers import WAIT_SECONDS

PROMPT = list(range(100))
BODY = {"prompt": PROMPT, "max_tokens": 2}


async def heard(rig: Rig, block_tokens: int) -> None:
    """The gateway knows the fleet's block size."""
    rig.router.send(msgspec.structs.replace(rig.router.fleet, block_tokens=block_tokens))
    async with asyncio.timeout(WAIT_SECONDS):
        while (
            fleet := rig.gateway.core.fleet_of("m")
        ) is None or fleet.block_tokens != block_tokens:
            await rig.turn()


async def test_the_prefix_is_named_once_the_block_size_is_known(rig: Rig) -> None:
    await rig.ready()
    rig.router.answer = refuse_with("queue_full")
    await rig.post("/v1/completions", **BODY)
    assert (await rig.router.next(Submit)).prefix_hashes == b""
    await heard(rig, 32)
    await rig.post("/v1/completions", **BODY)
    submit = await rig.router.next(Submit)
    assert submit.prefix_hashes == prefix_hashes(pack_ids(PROMPT), 32, None)
    assert len(submit.prefix_hashes) == 3 * 8


async def test_the_session_header(rig: Rig) -> None:
    await rig.ready()
    rig.router.answer = refuse_with("queue_full")
    url = f"{rig.url}/v1/completions"
    for given, said in (("chat-7", "chat-7"), ("", ""), ("x" * 128, "x" * 128)):
        await rig.http.post(url, json=BODY, headers={"x-session-id": given})
        assert (await rig.router.next(Submit)).session == said
    for bad in ("a b", "x" * 129, "ä"):
        response = await rig.http.post(url, json=BODY, headers={"x-session-id": bad})
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "x-session-id"

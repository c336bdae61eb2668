"""`store pin`, `unpin` and `drop`: which blocks are meant, who is told, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.errors import BatonError, Code
from common.messages import Beat, KvCounts, Load, OrderStore, PrefixDelta
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from services.router.admin.answer import run
from services.router.admin.verb import View
from tests.rigs.messages import BLOCK
from tests.unit.services.router.rig import Rig

IDS = list(range(10 * BLOCK))
NAMES = prefix_hashes(pack_ids(IDS), BLOCK, None)
P0, P1, D0 = "p0|1", "p1|1", "d0|1"


def fleet(*, pinned: int = 0) -> Rig:
    """p0 stores the first eight blocks of the prompt of r1, p1 the first three."""
    rig = Rig(policy="cost")
    rig.gateway()
    for name in ("p0", "p1"):
        rig.prefill(name, pull_blocks=64)
    rig.decode("d0")
    for peer in (P0, P1):
        counts = KvCounts(store_slots=20, store_pinned=pinned)
        rig.receive(peer, Beat(load=Load(), kv_counts=counts))
    rig.receive(P0, PrefixDelta(stored=NAMES[:64], medium="store"))
    rig.receive(P1, PrefixDelta(stored=NAMES[:24], medium="store"))
    rig.submit("r1", prompt=len(IDS), prefix_hashes=NAMES, session="s1")
    rig.sent.clear()
    return rig


def ask(rig: Rig, **args: Any) -> Any:
    view = View(rig.core.shared, rig.now, {}, rig.handle)
    return msgspec.json.decode(msgspec.json.encode(run(view, "store", args)))


def ordered(rig: Rig) -> dict[str, tuple[str, bytes]]:
    """By peer, the action and the names that it was sent."""
    return {
        send.peer: (send.message.action, send.message.names)
        for send in rig.sent
        if isinstance(send.message, OrderStore)
    }


def refusal(rig: Rig, **args: Any) -> BatonError:
    with pytest.raises(BatonError) as raised:
        ask(rig, **args)
    assert ordered(rig) == {}
    return raised.value


@pytest.mark.parametrize("action", ["pin", "unpin", "drop"])
def test_whoever_has_some_of_the_prompt_is_told_which(action: str) -> None:
    rig = fleet()
    rows = ask(rig, action=action, request="r1")
    assert [(row["worker"], row["action"], row["blocks"], row["wanted"]) for row in rows] == [
        ("p0", action, 8, 10),
        ("p1", action, 3, 10),
    ]
    assert ordered(rig) == {P0: (action, NAMES[:64]), P1: (action, NAMES[:24])}


def test_a_request_that_is_over_is_known_a_while() -> None:
    rig = fleet()
    rig.prefilled("r1", peer=rig.known("r1").prefill)
    rig.started("r1")
    rig.ended("r1")
    assert rig.core.shared.history.latest("r1") is not None
    ask(rig, action="pin", request="r1", worker="p1")
    assert ordered(rig) == {P1: ("pin", NAMES[:24])}


def test_a_session_means_the_prompts_of_all_its_requests() -> None:
    rig = fleet()
    other = prefix_hashes(pack_ids(IDS[::-1]), BLOCK, None)
    rig.submit("r2", prompt=len(IDS), prefix_hashes=other, session="s1")
    rig.submit("r3", prompt=len(IDS), prefix_hashes=other[:8], session="s2")
    rig.receive(P1, PrefixDelta(stored=other[:16], medium="store"))
    rig.sent.clear()
    rows = ask(rig, action="drop", session="s1", worker="p1")
    assert [(row["blocks"], row["wanted"]) for row in rows] == [(5, 20)]
    _, names = ordered(rig)[P1]
    assert {names[:24], names[24:]} == {NAMES[:24], other[:16]}


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (2 * BLOCK, 2), (2 * BLOCK + 1, 3)])
def test_the_beginning_of_a_prompt_is_so_many_tokens(tokens: int, blocks: int) -> None:
    rig = fleet()
    ask(rig, action="pin", request="r1", tokens=tokens, worker="p0")
    assert ordered(rig) == {P0: ("pin", NAMES[: 8 * blocks])}


def test_no_more_than_half_of_a_memory_is_pinned() -> None:
    rig = fleet(pinned=3)
    wrong = refusal(rig, action="pin", request="r1")
    assert wrong.code is Code.INVALID_REQUEST
    assert "p0 may keep 10 blocks, half of its memory; 3 are pinned, and 8 would be" in str(wrong)
    assert "give tokens=, or raise [kv.store] ram_mib" in str(wrong)
    ask(rig, action="pin", request="r1", tokens=7 * BLOCK)
    assert set(ordered(rig)) == {P0, P1}
    rig.sent.clear()
    ask(rig, action="drop", request="r1")
    assert set(ordered(rig)) == {P0, P1}, "only pins need room"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ({}, Code.INVALID_REQUEST, "needs request= or session=, one of them"),
        ({"request": "r1", "session": "s1"}, Code.INVALID_REQUEST, "one of them"),
        ({"request": "r9"}, Code.NOT_FOUND, "no request starts with 'r9'"),
        ({"session": "s9"}, Code.NOT_FOUND, "known any more of session 's9'"),
        ({"request": "r1", "worker": "d0"}, Code.NOT_FOUND, "has any of these blocks"),
        ({"request": "short"}, Code.INVALID_REQUEST, "shorter than a KV block"),
    ],
)
def test_what_cannot_be_done_is_said(args: dict[str, Any], code: Code, says: str) -> None:
    rig = fleet()
    rig.submit("short", prompt=3)
    rig.sent.clear()
    wrong = refusal(rig, action="pin", **args)
    assert (wrong.code, says in str(wrong)) == (code, True)


def test_a_worker_that_is_gone_is_told_nothing() -> None:
    rig = fleet()
    rig.gone(P0)
    rig.sent.clear()
    ask(rig, action="drop", request="r1")
    assert set(ordered(rig)) == {P1}

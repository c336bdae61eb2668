"""Pools in the router: they learn what to hold, are never placed on, and go with what they have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.messages import (
    Abort,
    Beat,
    Decode,
    Ended,
    HeldAttempt,
    Holding,
    Introduce,
    Layout,
    Load,
    Placed,
    Prefill,
    PrefillEnded,
    PrefixDelta,
    Refused,
    Role,
    Took,
    Welcome,
)
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from services.router.admin.verb import View
from services.router.admin.verbs import status, workers
from services.router.events import WorkerDrained
from services.router.fleet.pools import pool_for
from tests.rigs.messages import BLOCK, capacity, hello, worker_hello
from tests.unit.services.router.rig import Rig

IDS = list(range(320))
HASHES = prefix_hashes(pack_ids(IDS), BLOCK, None)
ROOM = msgspec.structs.replace(capacity(pull_blocks=64), kv_layers=4)
HELD = msgspec.structs.replace(ROOM, max_model_len=0, max_num_seqs=0, kv_blocks=64)
LAYERS_ONLY = msgspec.structs.replace(capacity(), kv_layers=4)
LAYOUT = Layout(
    worker="p0",
    fingerprint="f",
    fingerprint_parts={},
    block_tokens=BLOCK,
    block_bytes=1024,
    layers=4,
)
P0, P1, S0 = "p0|1", "p1|1", "s0|1"


def pool(rig: Rig, name: str = "s0", incarnation: str = "1", **more: Any) -> str:
    """Says Hello, as one that holds nothing yet, and one Beat."""
    peer = f"{name}|{incarnation}"
    about = {"model": "model", **more}
    rig.receive(peer, hello(Role.POOL, name, incarnation, **about))
    rig.beat(peer, Load())
    return peer


def opened(rig: Rig, name: str = "s0", **more: Any) -> None:
    """Says Hello again, with what it has learned."""
    about = {"model": "model", "fingerprint": "f", "kv_address": f"127.0.0.1:{name}", **more}
    rig.receive(f"{name}|1", hello(Role.POOL, name, capacity=HELD, **about))


def fleet(**settings: Any) -> Rig:
    rig = Rig(**settings)
    rig.gateway()
    rig.prefill("p0", capacity=ROOM)
    rig.decode("d0", capacity=ROOM)
    pool(rig)
    opened(rig)
    return rig


def test_a_pool_learns_the_layout_of_the_first_worker_with_a_store_whoever_comes_first() -> None:
    rig = Rig()
    pool(rig)
    for number, room in enumerate((capacity(), capacity(pull_blocks=64), LAYERS_ONLY)):
        rig.prefill(f"p{9 - number}", capacity=room)
        assert rig.take(Layout) == [], "it has no store for others, or does not say its layers"
    rig.prefill("p0", capacity=ROOM)
    assert rig.take(Layout, S0) == [LAYOUT]
    rig = Rig()
    rig.prefill("p0", capacity=ROOM)
    pool(rig)
    assert rig.take(Layout, S0) == [LAYOUT]


def test_a_pool_that_knows_what_it_holds_is_not_told_again() -> None:
    rig = fleet()
    rig.sent.clear()
    rig.prefill("p1", capacity=ROOM)
    rig.prefill("p2", capacity=ROOM, fingerprint="other")
    assert rig.take(Layout) == []


def test_pool_and_workers_are_introduced_to_each_other_and_pools_to_none() -> None:
    rig = fleet()
    address = rig.row(S0).kv_address
    assert Introduce(kv_address=address) in rig.take(Introduce, P0)
    assert Introduce(kv_address=address) in rig.take(Introduce, "d0|1")
    told = {message.kv_address for message in rig.take(Introduce, S0)}
    assert told == {rig.row(P0).kv_address, rig.row("d0|1").kv_address}
    pool(rig, "s1")
    opened(rig, "s1")
    assert address not in {message.kv_address for message in rig.take(Introduce, "s1|1")}
    rig.sent.clear()
    rig.prefill("p1", capacity=ROOM)
    assert Introduce(kv_address=address) in rig.take(Introduce, P1)
    rig.decode("d1", capacity=ROOM)
    told_d1 = rig.take(Introduce, "d1|1")
    assert Introduce(kv_address=address) in told_d1
    assert {message.prefill for message in told_d1} == {"p0", "p1", ""}, "a pool hands nothing over"


def test_a_pool_that_is_gone_is_told_nothing() -> None:
    rig = Rig()
    rig.gone(pool(rig))
    rig.prefill("p0", capacity=ROOM)
    assert rig.take(Layout) == []


def test_what_it_has_learned_is_in_its_row() -> None:
    row = fleet().row(S0)
    assert (row.capacity, row.kv_token_bytes) == (HELD, 1024 / BLOCK)


def test_nothing_is_placed_on_a_pool_and_no_figure_counts_it_as_a_worker() -> None:
    rig = fleet()
    for number in range(4):
        rig.submit(f"r{number}")
    assert {order.ticket.prefill for order in rig.take(Prefill)} == {"p0"}
    assert {placed.decode for placed in rig.take(Placed)} == {"d0"}
    assert not rig.take(Decode, S0)
    assert not rig.take(Prefill, S0)
    summary = rig.core.tables.fleet
    assert (summary.prefill_ready, summary.decode_ready) == (1, 1)
    shown = status.run(View(rig.core.shared, rig.now, {}), {})
    assert (shown.prefill_ready, shown.decode_ready, shown.pools_ready) == (1, 1, 1)


def test_a_pool_is_a_source_of_pulls_until_it_is_gone() -> None:
    rig = fleet(policy="cost")
    rig.receive(S0, PrefixDelta(stored=HASHES[:80], medium="store"))

    def source() -> str:
        rig.sent.clear()
        rig.submit(f"r{rig.now}", prompt=len(IDS), prefix_hashes=HASHES)
        (order,) = rig.take(Prefill)
        rig.tick(0.1, alive=(P0, "d0|1", "g0|1"))
        return order.source.name if order.source is not None else ""

    assert source() == "s0"
    rig.gone(S0)
    assert len(rig.core.tables.placement_memory.stored) == 0
    rig.core.tables.placement_memory.prefixes.clear(P0)
    assert source() == ""


def test_a_new_incarnation_begins_with_nothing_and_fences_the_older_one() -> None:
    rig = fleet()
    rig.receive(S0, PrefixDelta(stored=HASHES[:80], medium="store"))
    rig.sent.clear()
    pool(rig, incarnation="2")
    assert rig.core.shared.fenced == {S0: "s0|2"}
    assert len(rig.core.tables.placement_memory.stored) == 0
    assert rig.take(Layout, "s0|2") == [LAYOUT]
    rig.receive(S0, Beat(load=Load()))
    assert len(rig.take(Refused, S0)) == 1


def test_a_pool_that_comes_back_keeps_its_layout_and_starts_at_once() -> None:
    rig = fleet()
    rig.gone(S0)
    opened(rig)
    rig.beat(S0, Load())
    rig.tick(60.0, alive=(P0, "d0|1", S0, "g0|1"))
    assert rig.row(S0).ready
    assert rig.row(S0).fingerprint == "f"


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"fingerprint": "f"}, "must say a fingerprint, an address and a capacity, or none"),
        ({"capacity": HELD}, "must say a fingerprint, an address and a capacity, or none"),
        ({"fingerprint": "f", "capacity": HELD}, "must say a fingerprint, an address and"),
        (
            {"fingerprint": "f", "kv_address": "a:1", "capacity": capacity(pull_blocks=0)},
            "must say a capacity above 0",
        ),
        ({"model": "x"}, "serves the model 'x'; this fleet's file has model"),
    ],
)
def test_a_pool_that_says_half_of_it_is_refused(about: dict[str, Any], says: str) -> None:
    rig = Rig()
    rig.receive(S0, hello(Role.POOL, "s0", **{"model": "model", **about}))
    (refused,) = rig.take(Refused, S0)
    assert says in refused.message


@pytest.mark.parametrize("mode", ["single", "replicated"])
def test_a_pool_has_its_place_in_every_mode_and_takes_none(mode: str) -> None:
    rig = Rig(mode=mode)
    pool(rig)
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    pool(rig, "s1")
    assert [len(rig.take(Welcome, peer)) for peer in (S0, "d0|1", "s1|1")] == [1, 1, 1]


def test_what_only_workers_say_is_dropped() -> None:
    rig = fleet()
    rig.submit("r1")
    before = rig.core.tables.counts.dropped.get("wrong role", 0)
    held = HeldAttempt("r9", 1, 40, 8, decode="d0|1", gateway="g0|1")
    messages = (
        Ended(request_id="r1", attempt=1),
        PrefillEnded(request_id="r1", attempt=1, elapsed_ms=1.0),
        Holding(attempts=(held,)),
        Took(held=held),
    )
    for message in messages:
        rig.receive(S0, message)
    assert rig.core.tables.counts.dropped["wrong role"] == before + len(messages)
    assert rig.state("r1") == "placed"
    assert not rig.take(Abort)


def test_ctl_workers_lists_pools_last_and_says_when_one_holds_nothing_yet() -> None:
    rig = Rig()
    rig.decode("d0")
    pool(rig)
    rows = workers.run(View(rig.core.shared, rig.now, {}), {"role": ""})
    assert [row.name for row in rows] == ["d0", "s0"]
    assert rows[1].reason == "it holds nothing before a worker with a store is ready"
    assert [row.unlike for row in rows] == ["", ""]


def test_prompts_of_one_beginning_go_to_one_pool_and_few_change_it_when_one_leaves() -> None:
    rig = fleet()
    for name in ("s1", "s2"):
        pool(rig, name)
        opened(rig, name)
    giver, rows = rig.row(P0).view(), rig.core.tables.pools
    firsts = [bytes([n]) * 8 for n in range(90)]

    def chosen() -> list[str]:
        found = [pool_for(rows.values(), giver, [first]) for first in firsts]
        return [holder.name if holder is not None else "" for holder in found]

    before = chosen()
    assert before == chosen()
    assert all(before.count(name) > 10 for name in ("s0", "s1", "s2"))
    rig.gone("s1|1")
    after = chosen()
    assert all(now in {was, "s0", "s2"} for was, now in zip(before, after, strict=True))
    stayed = [now == was for was, now in zip(before, after, strict=True) if was != "s1"]
    assert all(stayed)
    assert "s1" not in after


def test_no_pool_gets_blocks_of_another_fingerprint_or_of_a_worker_without_a_store() -> None:
    rig = fleet()
    rig.prefill("p1", capacity=ROOM, fingerprint="other")
    rig.prefill("p2")
    rows, prefix = rig.core.tables.pools, [b"1" * 8]
    held = pool_for(rows.values(), rig.row(P0).view(), prefix)
    assert held is not None
    assert (held.name, held.lasting, held.kv_address) == ("s0", True, rig.row(S0).kv_address)
    assert pool_for(rows.values(), rig.row(P0).view(), []) is None
    assert pool_for(rows.values(), rig.row(P1).view(), prefix) is None
    assert pool_for(rows.values(), rig.row("p2|1").view(), prefix) is None


def test_p_and_d_are_told_which_pool_gets_the_blocks_and_of_a_drained_one_nothing() -> None:
    rig = fleet()
    rig.submit("r1", prompt=len(IDS), prefix_hashes=HASHES)
    (prefill,), (decode,) = rig.take(Prefill), rig.take(Decode)
    assert prefill.holder is not None
    assert prefill.holder == decode.holder
    assert (prefill.holder.name, prefill.holder.incarnation) == ("s0", "1")
    assert rig.known().holder == S0
    rig.handle(WorkerDrained(S0, on=True))
    rig.submit("r2", prompt=len(IDS), prefix_hashes=HASHES)
    (prefill,), (decode,) = rig.take(Prefill), rig.take(Decode)
    assert (prefill.holder, decode.holder) == (None, None)

"""Copies of running streams at another holder, and where a stream goes on whose worker is lost:
through the whole core."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping
from common.messages import (
    AdapterStatus,
    Beat,
    Decode,
    HeldAttempt,
    Holding,
    KvCheckpoint,
    KvHold,
    Load,
    PairTrouble,
    Placed,
    Prefill,
)
from services.router.admin.kv_ledger import holds, orphans
from services.router.settings import from_config
from services.router.timeline.attempt_story import attempt_record
from tests.rigs.messages import BLOCK
from tests.unit.services.router.rig import Rig

PROMPT, OUT = 160, 64
GONE_ON = 224


def fleet(decodes: int = 2, policy: str = "all", **more: Any) -> Rig:
    rig = Rig(policy="least_loaded", checkpoint=policy, **more)
    rig.gateway()
    rig.prefill("p0", pull_blocks=64)
    for at in range(decodes):
        rig.decode(f"d{at}", pull_blocks=64)
    rig.sent.clear()
    return rig


def start(rig: Rig, **about: Any) -> Decode:
    rig.submit(prompt=PROMPT, out=OUT, **{"resumable": True, **about})
    (order,) = rig.take(Decode)
    rig.prefilled()
    rig.started(peer=rig.known().decode)
    return order


def report(rig: Rig, held: int, blocks: int = 12, attempt: int = 1) -> None:
    peer = rig.known(attempt=attempt).decode
    row = KvCheckpoint(request_id="r1", attempt=attempt, holder="x", blocks=blocks, held=held)
    rig.receive(peer, Beat(load=Load(running=1), kv_checkpoints=(row,)))


def lose(rig: Rig, attempt: int = 1, **about: Any) -> Decode:
    """The worker dies, and the gateway submits what it has."""
    rig.gone(rig.known(attempt=attempt).decode)
    rig.sent.clear()
    more = {"resumable": True, **about}
    rig.submit(attempt=attempt + 1, prompt=GONE_ON, out=OUT, **more)
    (order,) = rig.take(Decode)
    return order


def story(rig: Rig, attempt: int) -> str:
    return " ".join(attempt_record(rig.known(attempt=attempt), rig.now).sentences)


def test_copies_go_to_a_worker_that_has_the_stream_s_adapter() -> None:
    rig = fleet(decodes=4)
    held = (AdapterStatus(id="sql@1", path="/sql", resident=True),)
    for peer in ("p0|1", "d2|1", "d3|1"):
        rig.receive(peer, Beat(load=Load(), adapters=held))
    holders = []
    for nth in range(8):
        rig.submit(f"r{nth}", adapter="sql@1", prompt=PROMPT, out=OUT, resumable=True)
        (order,) = rig.take(Decode)
        holders.append(order.holder.name if order.holder is not None else "")
    assert set(holders) == {"d2", "d3"}


def test_the_decode_worker_is_told_who_gets_copies() -> None:
    rig = fleet()
    order = start(rig)
    assert order.holder is not None
    other = "d1" if rig.known().decode == "d0|1" else "d0"
    assert (order.holder.name, order.holder.kv_address) == (other, rig.row(f"{other}|1").kv_address)
    assert not order.holder.goes_on, "nobody knows yet where it will"
    assert f"copies of its blocks go to {other}" in story(rig, 1)
    report(rig, 9)
    assert f"{other} had copies of 9 of its 12 full blocks" in story(rig, 1)


@pytest.mark.parametrize(
    ("policy", "about", "told"),
    [
        ("none", {}, False),
        ("sessions", {}, False),
        ("sessions", {"session": "s"}, True),
        ("all", {"resumable": False}, False),
    ],
)
def test_the_policy_decides(policy: str, about: dict[str, Any], told: bool) -> None:
    assert (start(fleet(policy=policy), **about).holder is not None) is told


def test_off_is_the_default_and_the_fleet_file_decides() -> None:
    def read(**kv: Any) -> str:
        made = {"prefill": {"p0": {}}, "decode": {"d0": {"kv": kv}}, "kv": kv}
        return from_config(from_mapping(made), "r0", "1").checkpoint

    assert read() == "none"
    assert read(checkpoint={"policy": "sessions"}, store={"ram_mib": 8}) == "sessions"


def test_a_single_worker_has_nobody_to_copy_to() -> None:
    assert start(fleet(decodes=1)).holder is None


def test_a_stream_whose_worker_is_lost_goes_on_where_its_copies_are() -> None:
    rig = fleet(decodes=4)
    first = start(rig)
    report(rig, 10)
    assert first.holder is not None
    for at in range(3):
        rig.submit(f"busy{at}", prompt=40)
    rig.sent.clear()
    order = lose(rig)
    attempt = rig.known(attempt=2)
    assert attempt.decode == f"{first.holder.name}|1", "though others have fewer requests"
    assert (order.ticket, order.source) == (None, None), "its own store has them"
    assert rig.take(Prefill) == []
    assert order.holder is not None
    assert order.holder.name != first.holder.name, "the next copies go elsewhere"
    rig.started(attempt=2, peer=attempt.decode, kv=None)
    told = story(rig, 2)
    assert f"it went on from the copies of its blocks at {first.holder.name}" in told
    assert f"{GONE_ON} were computed again" in told


def test_a_holder_without_room_is_pulled_from() -> None:
    rig = fleet(decodes=4, remote_prefill="never")
    first = start(rig)
    report(rig, 10)
    assert first.holder is not None
    holder = f"{first.holder.name}|1"
    rig.row(holder).preexisting_requests = 5
    rig.row(holder).set_slots(0)
    order = lose(rig)
    assert order.holder == first.holder, "the copies stay where they are"
    assert rig.known(attempt=2).decode != holder
    assert order.source is not None
    assert (order.source.name, order.source.tokens) == (first.holder.name, GONE_ON)
    assert "it is to go on from the copies" in story(rig, 2)


@pytest.mark.parametrize("held", [0, 6])
def test_a_holder_with_little_is_as_good_as_another(held: int) -> None:
    assert held * BLOCK * 2 < GONE_ON
    rig = fleet(decodes=3)
    first = start(rig)
    assert first.holder is not None
    if held:
        report(rig, held)
    holder = f"{first.holder.name}|1"
    row = rig.row(holder)
    row.preexisting_requests = 5
    row.stale_snapshots[holder] = row
    lose(rig)
    assert rig.known(attempt=2).decode != holder
    if held:
        assert first.holder.name in story(rig, 2)


def test_a_holder_that_is_gone_too_is_forgotten() -> None:
    rig = fleet(decodes=3, remote_prefill="never")
    first = start(rig)
    report(rig, 10)
    assert first.holder is not None
    rig.gone(f"{first.holder.name}|1")
    order = lose(rig)
    assert order.source is None
    assert "it did not go on from them" in story(rig, 2)


def test_what_was_copied_before_is_known_to_a_third_attempt() -> None:
    """The second had no holder of its own."""
    rig = fleet(decodes=2)
    first = start(rig)
    report(rig, 10)
    assert first.holder is not None
    assert lose(rig).holder is None, "there are only two workers"
    assert rig.known(attempt=2).decode == f"{first.holder.name}|1"
    rig.submit(attempt=3, prompt=GONE_ON, out=OUT, resumable=True)
    third = rig.known(attempt=3)
    assert (third.copies_at, third.copied_blocks) == (f"{first.holder.name}|1", 10)


@pytest.mark.parametrize(("held", "first_s"), [(0, True), (4, False), (12, False)])
def test_a_second_attempt_that_is_lost_early_leaves_the_copies_of_the_first(
    held: int, first_s: bool
) -> None:
    """It ran at their holder; its own holder has got so many blocks."""
    rig = fleet(decodes=3)
    first = start(rig)
    report(rig, 10)
    second = lose(rig)
    assert first.holder is not None
    assert second.holder is not None
    if held:
        report(rig, held, attempt=2)
    rig.submit(attempt=3, prompt=GONE_ON, out=OUT, resumable=True)
    third = rig.known(attempt=3)
    expected = (first.holder, 10) if first_s else (second.holder, held)
    assert (third.copies_at, third.copied_blocks) == (f"{expected[0].name}|1", expected[1])


@pytest.mark.parametrize(("held", "newer"), [(4, False), (12, True)])
def test_copies_at_a_worker_where_it_did_not_run_count_by_their_number(
    held: int, newer: bool
) -> None:
    rig = fleet(decodes=4, remote_prefill="never")
    first = start(rig)
    report(rig, 10)
    assert first.holder is not None
    rig.row(f"{first.holder.name}|1").set_slots(0)
    lose(rig)
    rig.known(attempt=2).holder = "d9|1"
    report(rig, held, attempt=2)
    rig.submit(attempt=3, prompt=GONE_ON, out=OUT, resumable=True)
    assert rig.known(attempt=3).copies_at == ("d9|1" if newer else f"{first.holder.name}|1")


def test_a_stream_that_moves_takes_its_kv_along_and_not_its_copies() -> None:
    rig = fleet(decodes=3)
    first = start(rig)
    report(rig, 10)
    assert first.holder is not None
    left = rig.known().decode
    rig.ended(peer=left, error="moved")
    rig.submit(attempt=2, prompt=GONE_ON, out=OUT, resumable=True, moved_from=left)
    (order,) = rig.take(Decode)
    assert order.ticket is not None
    assert order.ticket.prefill == left.split("|")[0]


def test_a_router_that_was_restarted_learns_the_holder_from_the_worker() -> None:
    rig = fleet(decodes=3)
    rig.row("d1|1").preexisting_requests = 5
    held = HeldAttempt("r1", 1, PROMPT, OUT, "d0|1", gateway="g0|1", started=True, holder="d1|1")
    rig.receive("d0|1", Holding(attempts=(held,)))
    report(rig, 11)
    lose(rig)
    assert rig.known(attempt=2).decode == "d1|1"


def test_a_report_of_another_worker_is_not_believed() -> None:
    rig = fleet()
    start(rig)
    row = KvCheckpoint(request_id="r1", attempt=1, holder="x", blocks=12, held=12)
    other = "d1|1" if rig.known().decode == "d0|1" else "d0|1"
    rig.receive(other, Beat(load=Load(running=1), kv_checkpoints=(row,)))
    assert rig.known().checkpoint is None


def test_damaged_copies_keep_a_pair_apart() -> None:
    rig = fleet(decodes=3)
    trouble = PairTrouble(
        request_id="d1|1#copy", attempt=4, prefill="d0", prefill_incarnation="1", kind="digest"
    )
    rig.receive("d1|1", trouble)
    pairs = rig.core.tables.placement_memory.pairs
    assert pairs.refresh_excluded(rig.now) == {("d0|1", "d1|1")}
    gone = PairTrouble(
        request_id="d1|1#copy", attempt=5, prefill="d9", prefill_incarnation="1", kind="digest"
    )
    assert rig.receive("d1|1", gone) == []
    assert pairs.refresh_excluded(rig.now) == {("d0|1", "d1|1")}


def test_holds_of_copies_are_no_leak_before_their_lease_ends() -> None:
    rig = fleet()

    def beat(lease_ms: float) -> None:
        hold = KvHold(
            request_id="d1|1#copy",
            attempt=3,
            peer="d1",
            side="send",
            blocks=2,
            bytes=99,
            lease_left_ms=lease_ms,
            age_ms=4_000.0,
        )
        rig.receive("d0|1", Beat(load=Load(), kv_holds=(hold,), kv_holds_total=1))

    beat(1_000.0)
    (tracked,) = holds(rig.core.shared)
    assert (tracked.state, orphans(rig.core.shared)) == ("copy", 0)
    beat(0.0)
    assert orphans(rig.core.shared) == 1


def test_the_gateway_is_told_as_ever() -> None:
    rig = fleet()
    start(rig)
    report(rig, 10)
    lose(rig)
    (placed,) = rig.take(Placed)
    assert placed.attempt == 2

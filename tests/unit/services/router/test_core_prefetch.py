"""Requests that wait in the queue: which workers are told of them, once, and what is said of it."""

from __future__ import annotations

from typing import Any

from common.messages import Abort, Beat, Decode, KvCounts, KvReport, Load, Prefetch, PrefixDelta
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from services.router.timeline.attempt_story import attempt_record
from tests.rigs.messages import BLOCK
from tests.unit.services.router.rig import Rig

IDS = list(range(320))
HASHES = prefix_hashes(pack_ids(IDS), BLOCK, None)
P0, P1, D0, D1 = "p0|1", "p1|1", "d0|1", "d1|1"


def fleet(pull_blocks: int = 64, *, stored: bool = True, **more: Any) -> Rig:
    """Both decode workers compute prompts and are full; d1 stores the first ten blocks."""
    below = {"disk_blocks": more.pop("disk_blocks", 0)}
    rig = Rig(policy="cost", remote_prefill="never", **more)
    rig.gateway()
    rig.decode("d1", pull_blocks=pull_blocks, seqs=2, **below)
    rig.submit("busy1", prompt=64)
    rig.decode("d0", pull_blocks=pull_blocks, seqs=2, **below)
    rig.submit("busy0", prompt=32)
    if stored:
        rig.receive(D1, PrefixDelta(stored=HASHES[:80], medium="store"))
    rig.sent.clear()
    return rig


def submit(rig: Rig, name: str = "r1", **more: Any) -> list[Prefetch]:
    rig.sent.clear()
    rig.submit(name, prompt=len(IDS), prefix_hashes=HASHES, **more)
    return rig.take(Prefetch)


def test_the_worker_that_will_probably_compute_it_is_told_once_and_from_where() -> None:
    rig = fleet()
    (order,) = submit(rig)
    assert (order.request_id, order.attempt) == ("r1", 1)
    assert order.source is not None
    assert (order.source.name, order.source.tokens) == ("d1", 160)
    assert order.body == rig.known().body == b"body"
    rig.sent.clear()
    for _ in range(3):
        rig.tick(0.1)
        rig.core.tables.changes.capacity = True
    assert rig.take(Prefetch) == []


def test_it_is_told_in_explain_when_it_is_placed() -> None:
    rig = fleet()
    submit(rig)
    told = rig.known().prefetch
    assert told is not None
    assert told.identity == D0
    rig.sent.clear()
    rig.ended("busy0")
    assert rig.known().decode == D0
    said = " ".join(attempt_record(rig.known(), rig.now).sentences)
    assert "d0 was to prefetch 160 tokens of it out of the store of d1 while it waited" in said
    assert rig.take(Abort) == []


def test_a_worker_that_does_not_get_it_is_told_so_before_anything_else() -> None:
    rig = fleet()
    submit(rig)
    rig.sent.clear()
    rig.ended("busy1", peer=D1)
    assert rig.known().decode == D1
    (abort,) = rig.take(Abort, D0)
    assert (abort.request_id, abort.attempt) == ("r1", 1)
    assert rig.take(Abort, D1) == []
    assert len(rig.take(Decode, D1)) == 1


def test_a_worker_that_is_gone_is_told_nothing() -> None:
    rig = fleet()
    submit(rig)
    rig.gone(D0)
    rig.sent.clear()
    rig.ended("busy1", peer=D1)
    assert rig.take(Abort, D0) == []


def test_only_the_next_requests_of_the_queue() -> None:
    rig, told = fleet(prefetch_queued=2), []
    for number in range(4):
        ids = [number, *IDS]
        hashes = prefix_hashes(pack_ids(ids), BLOCK, None)
        rig.receive(D1, PrefixDelta(stored=hashes[:80], medium="store"))
        rig.sent.clear()
        rig.submit(f"r{number}", prompt=len(ids), prefix_hashes=hashes)
        told.append(len(rig.take(Prefetch)))
    assert told == [1, 1, 0, 0]
    rig.sent.clear()
    rig.ended("busy1", peer=D1)
    assert [order.request_id for order in rig.take(Prefetch)] == ["r2"]


def test_off_is_off() -> None:
    assert submit(fleet(prefetch_queued=0)) == []


def test_nobody_is_told_where_no_store_gives_or_gets() -> None:
    assert submit(fleet(pull_blocks=0)) == []
    assert submit(fleet(stored=False)) == []


def test_nor_of_what_the_worker_has_what_cannot_be_pulled_or_comes_with_its_kv() -> None:
    rig = fleet()
    rig.receive(D0, PrefixDelta(stored=HASHES, medium="store"))
    assert submit(rig) == [], "its own store has all of it"
    assert submit(fleet(), local_reason="it wants prompt_logprobs") == []
    slow = fleet()
    report = KvReport(messages=2, payload_bytes=10, transfer_ms=1e6)
    slow.core.tables.estimates.bandwidth.record_transfer("d1", "d0", report)
    assert submit(slow) == [], "computing is sooner"


def test_the_prefill_worker_is_told_where_it_computes_the_prompt() -> None:
    rig = Rig(policy="cost")
    rig.gateway()
    rig.prefill("p0", pull_blocks=64)
    rig.decode("d0", seqs=2)
    rig.submit("busy", prompt=600)
    rig.prefill("p1", pull_blocks=64)
    rig.receive(P0, PrefixDelta(stored=HASHES[:80], medium="store"))
    (order,) = submit(rig)
    assert order.source is not None
    assert order.source.name == "p0"
    told = rig.known().prefetch
    assert told is not None
    assert told.identity == P1
    rig.sent.clear()
    rig.ended("busy")
    assert rig.known().prefill == P0, "it is idle now and has them itself"
    assert len(rig.take(Abort, P1)) == 1


def test_a_prompt_too_large_for_a_message_is_left_alone() -> None:
    rig = fleet()
    assert submit(rig, body=bytes((512 << 10) + 1)) == []
    assert len(submit(rig, "r2", body=bytes(512 << 10))) == 1


def test_a_worker_is_told_of_what_only_its_own_disk_has() -> None:
    rig = fleet(stored=False, disk_blocks=64)
    rig.receive(D0, PrefixDelta(stored=HASHES[:80], medium="disk"))
    (order,) = submit(rig)
    assert order.source is None
    told = rig.known().prefetch
    assert told is not None
    assert (told.identity, told.tokens) == (D0, 160)
    rig.sent.clear()
    rig.ended("busy0")
    said = " ".join(attempt_record(rig.known(), rig.now).sentences)
    assert "d0 was to prefetch 160 tokens of it from its own disk while it waited" in said
    assert "d0 has 160 tokens on its own disk" in said
    (decode,) = rig.take(Decode, D0)
    assert decode.source is None, "its engine finds them itself"


def test_also_where_the_disk_has_all_of_the_prompt() -> None:
    rig = fleet(stored=False, disk_blocks=64)
    rig.receive(D0, PrefixDelta(stored=HASHES, medium="disk"))
    assert len(submit(rig)) == 1


def test_not_of_what_its_memory_has_or_a_disk_that_is_slower_than_computing() -> None:
    rig = fleet(stored=False, disk_blocks=64)
    for medium in ("disk", "store"):
        rig.receive(D0, PrefixDelta(stored=HASHES[:80], medium=medium))
    assert submit(rig) == [], "memory has as much"
    slow = fleet(stored=False, disk_blocks=64)
    slow.receive(D0, PrefixDelta(stored=HASHES[:80], medium="disk"))
    counts = KvCounts(store_disk_bytes_per_s=1)
    slow.receive(D0, Beat(load=Load(running=1, kv_used=0.001), kv_counts=counts))
    assert submit(slow) == []


def test_the_disk_of_another_is_a_source_and_named_as_such() -> None:
    rig = fleet(stored=False, disk_blocks=64)
    rig.receive(D1, PrefixDelta(stored=HASHES[:80], medium="disk"))
    (order,) = submit(rig)
    assert order.source is not None
    assert (order.source.name, order.source.tokens) == ("d1", 160)
    rig.ended("busy0")
    said = " ".join(attempt_record(rig.known(), rig.now).sentences)
    assert "160 tokens of it out of the disk of d1" in said


def test_a_disk_that_is_lost_with_its_worker_or_cleared_is_none() -> None:
    for deltas in (
        [PrefixDelta(removed=HASHES, medium="disk")],
        [PrefixDelta(cleared=True, medium="disk")],
    ):
        rig = fleet(stored=False, disk_blocks=64)
        rig.receive(D0, PrefixDelta(stored=HASHES[:80], medium="disk"))
        for delta in deltas:
            rig.receive(D0, delta)
        assert submit(rig) == []
    rig = fleet(stored=False, disk_blocks=64)
    rig.receive(D0, PrefixDelta(stored=HASHES[:80], medium="disk"))
    rig.gone(D0)
    assert not rig.core.tables.placement_memory.knows_stores
    other = fleet(stored=False, disk_blocks=64)
    other.receive(D0, PrefixDelta(stored=HASHES[:80], medium="tape"))
    assert other.core.tables.placement_memory.prefixes.held(D0) == 0, (
        "a medium that it does not know"
    )
    bounded = fleet(stored=False, disk_blocks=4)
    bounded.receive(D0, PrefixDelta(stored=HASHES, medium="disk"))
    assert bounded.core.tables.placement_memory.on_disk.held(D0) == 4


def test_the_disk_of_a_prefill_worker_has_a_price_and_is_not_its_cache() -> None:
    rig = Rig(policy="cost")
    rig.gateway()
    rig.prefill("p0", pull_blocks=64, disk_blocks=64)
    rig.decode("d0", seqs=2)
    rig.receive(P0, PrefixDelta(stored=HASHES[:80], medium="disk"))
    rig.submit("r1", prompt=len(IDS), prefix_hashes=HASHES)
    said = " ".join(attempt_record(rig.known(), rig.now).sentences)
    assert "p0 has 160 tokens on its own disk" in said
    assert "tokens cached" not in said

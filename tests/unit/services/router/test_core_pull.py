"""A prompt whose beginning is in another worker's store: through the whole core."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import Decode, Introduce, KvReport, PairTrouble, Prefill, PrefixDelta
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from services.router.timeline.attempt_story import attempt_record
from tests.rigs.messages import BLOCK
from tests.unit.services.router.rig import Rig

IDS = list(range(320))
HASHES = prefix_hashes(pack_ids(IDS), BLOCK, None)
P0, P1, D0 = "p0|1", "p1|1", "d0|1"
PULLED = KvReport(
    blocks=10, complete=True, messages=2, payload_bytes=10_240, wait_ms=0.5, transfer_ms=2.0
)


def fleet(pull_blocks: int = 64, **more: Any) -> Rig:
    """Two prefill workers, of which p0 stores the first ten blocks and has much to compute."""
    rig = Rig(policy="cost", **more)
    rig.gateway()
    rig.prefill("p0", pull_blocks=pull_blocks)
    rig.decode("d0")
    rig.submit("busy", prompt=600)
    rig.prefill("p1", pull_blocks=pull_blocks)
    rig.receive(P0, PrefixDelta(stored=HASHES[:80], medium="store"))
    return rig


def submit(rig: Rig, name: str = "r1", **more: Any) -> Prefill:
    rig.sent.clear()
    rig.submit(name, prompt=len(IDS), prefix_hashes=HASHES, **more)
    (order,) = rig.take(Prefill)
    return order


def test_the_worker_that_computes_is_told_whose_store_has_the_beginning() -> None:
    rig = fleet()
    order = submit(rig)
    source = order.source
    assert order.ticket.prefill == "p1"
    assert source is not None
    assert (source.name, source.incarnation, source.tokens) == ("p0", "1", 160)
    assert (source.fingerprint, source.kv_address) == ("f", rig.row(P0).kv_address)
    placement = rig.known().placement
    assert placement is not None
    assert "p1 pulls 160 tokens out of the store of p0" in placement.sentence
    (decode,) = rig.take(Decode)
    assert decode.source is None, "D gets all of it from P"


def test_what_came_is_told_and_learned() -> None:
    rig = fleet()
    submit(rig)
    rig.prefilled(peer=P1, cached_tokens=160, pull=PULLED)
    told = " ".join(attempt_record(rig.known(), rig.now).sentences)
    assert "p1 pulled 10 KV blocks, 10240 bytes, out of the store of p0: 0.5 ms" in told
    estimates = rig.core.tables.estimates
    assert estimates.pull_latency_s() == pytest.approx(0.0005)
    assert estimates.bandwidth.bytes_per_s("p0", "p1") == pytest.approx(5120 / 0.002)


def test_a_pull_that_failed_is_told() -> None:
    rig = fleet()
    submit(rig)
    rig.prefilled(peer=P1, pull_failed="its store has 3 of 10 blocks")
    told = " ".join(attempt_record(rig.known(), rig.now).sentences)
    assert "p1 pulled nothing out of the store of p0 and computed it: its store has 3" in told


def test_a_store_that_lost_the_blocks_or_its_worker_is_no_source() -> None:
    lost = (
        PrefixDelta(removed=HASHES[:8], medium="store"),
        PrefixDelta(cleared=True, medium="store"),
        None,
    )
    for report in lost:
        rig = fleet()
        if report is None:
            rig.gone(P0)
            assert len(rig.core.tables.placement_memory.stored) == 0
        else:
            rig.receive(P0, report)
        rig.core.tables.placement_memory.check_invariants()
        assert submit(rig).source is None


def test_a_worker_that_is_given_up_is_no_source() -> None:
    rig = fleet()
    for _ in range(8):
        rig.tick(1.0, alive=(P1, D0, "g0|1"))
    assert rig.row(P0).away
    assert len(rig.core.tables.placement_memory.stored) == 10
    assert submit(rig).source is None


def test_the_time_of_a_pull_is_not_that_of_computing() -> None:
    rates = []
    for pull in (None, PULLED):
        rig = fleet()
        submit(rig)
        rig.prefilled(peer=P1, cached_tokens=160, pull=pull)
        rates.append(rig.core.tables.estimates.prefill.tokens_per_s(160))
    assert rates[1] > rates[0]


def test_the_engine_s_cache_is_no_store() -> None:
    rig = fleet()
    rig.receive(P0, PrefixDelta(cleared=True, medium="store"))
    rig.receive(P0, PrefixDelta(stored=HASHES[:80]))
    assert submit(rig).source is None


def test_workers_without_a_store_for_others_neither_give_nor_get() -> None:
    assert submit(fleet(pull_blocks=0)).source is None


def test_a_store_serves_its_own_worker_as_a_cache() -> None:
    rig = fleet()
    rig.prefilled("busy")
    rig.started("busy")
    rig.ended("busy")
    order = submit(rig)
    assert order.ticket.prefill == "p0"
    assert order.source is None


def test_a_pair_whose_pulls_fail_is_left_alone() -> None:
    rig = fleet()
    submit(rig)
    trouble = PairTrouble(
        request_id="r1",
        attempt=1,
        prefill="p0",
        prefill_incarnation="1",
        kind="digest",
    )
    rig.receive(D0, trouble)
    assert rig.core.tables.counts.dropped["stale pair trouble"] == 1
    rig.receive(P1, trouble)
    rig.prefilled(peer=P1)
    rig.started()
    rig.ended()
    pairs = rig.core.tables.placement_memory.pairs
    assert pairs.refresh_excluded(rig.now) == {(P0, P1)}
    rig.receive(P1, PrefixDelta(cleared=True))
    assert submit(rig, "r2").source is None
    for name in ("r2", "busy"):
        rig.started(name)
        rig.ended(name)
    rig.submit("busy2", prompt=600)
    (order,) = rig.take(Prefill)
    assert order.ticket.prefill == "p0"
    rig.now += 6.0
    rig.core.tables.estimates.record_pull("p0", "p1", KvReport(wait_ms=0.001))
    rig.receive(P1, PrefixDelta(cleared=True))
    assert submit(rig, "r3").source is not None
    assert pairs.refresh_excluded(rig.now) == {(P0, P1)}, "one prompt tries it"
    rig.prefilled("r3", peer=P1, pull=PULLED)
    assert pairs.refresh_excluded(rig.now) == set()


def test_workers_with_stores_are_introduced_to_each_other() -> None:
    rig = Rig()
    rig.gateway()
    rig.prefill("p0", pull_blocks=64)
    rig.prefill("p2")
    rig.sent.clear()
    rig.prefill("p1", pull_blocks=64)
    assert [told.kv_address for told in rig.take(Introduce, P0)] == [rig.row(P1).kv_address]
    assert [told.kv_address for told in rig.take(Introduce, P1)] == [rig.row(P0).kv_address]
    assert rig.take(Introduce, "p2|1") == []


def test_a_decode_worker_that_computes_the_prompt_itself_pulls_too() -> None:
    rig = Rig(policy="cost", remote_prefill="never")
    rig.gateway()
    rig.decode("d1", pull_blocks=64)
    rig.submit("busy", prompt=600)
    rig.decode("d0", pull_blocks=64)
    rig.receive("d1|1", PrefixDelta(stored=HASHES[:80], medium="store"))
    rig.sent.clear()
    rig.submit(prompt=len(IDS), prefix_hashes=HASHES)
    (order,) = rig.take(Decode)
    assert order.source is not None
    assert order.source.name == "d1"
    rig.ended()
    rig.receive(D0, PrefixDelta(cleared=True))
    reason = "it wants prompt_logprobs"
    rig.submit("r2", prompt=len(IDS), prefix_hashes=HASHES, local_reason=reason)
    (order,) = rig.take(Decode, D0)
    assert order.source is None

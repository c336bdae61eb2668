"""Which prefill workers a decode worker is not connected to, and when it tries again."""

from __future__ import annotations

import itertools

from common.worker.kv_reachability import (
    GRACE_SECONDS,
    KV_UNREACHABLE_MAX,
    PEERS_MAX,
    RETRY_SECONDS_MAX,
    KvReachability,
)

AT, RANKS = "10.0.0.1:7", "10.0.0.1:8,10.0.0.1:9"


def told(reachability: KvReachability, now: float) -> dict[str, float]:
    return {peer.prefill: peer.for_ms for peer in reachability.unreachable(now)}


def test_a_connection_has_a_moment_to_come_about() -> None:
    reachability = KvReachability()
    reachability.add("p0", AT, 100.0)
    assert reachability.due([], 101.0) == []
    assert told(reachability, 100.0 + GRACE_SECONDS - 0.1) == {}
    assert told(reachability, 100.0 + GRACE_SECONDS) == {"p0": GRACE_SECONDS * 1000}
    reachability.due([AT], 104.0)
    assert told(reachability, 200.0) == {}


def test_it_is_tried_again_less_and_less_often_and_anew_after_it_stood() -> None:
    reachability = KvReachability()
    reachability.add("p0", AT, 0.0)
    tried = [now for now in range(400) if reachability.due([], float(now))]
    waits = [after - before for before, after in itertools.pairwise(tried)]
    assert tried[0] == 2
    assert waits[:5] == [2, 4, 8, 16, 32]
    assert set(waits[5:]) == {RETRY_SECONDS_MAX}
    reachability.due([AT], 400.0)
    assert reachability.due([], 401.0) == [AT], "one that was lost is tried at once"
    assert told(reachability, 401.0 + GRACE_SECONDS) == {"p0": GRACE_SECONDS * 1000}
    assert reachability.due([], 402.0) == []
    assert reachability.due([], 403.0) == [AT]


def test_a_new_address_takes_the_place_of_the_old_one() -> None:
    reachability = KvReachability()
    reachability.add("p0", AT, 0.0)
    reachability.add("p0", RANKS, 10.0)
    assert reachability.due([], 20.0) == [RANKS]
    assert [peer.kv_address for peer in reachability.unreachable(20.0)] == [RANKS]
    reachability.due(["10.0.0.1:8"], 21.0)
    assert told(reachability, 100.0) == {}, "the first rank stands for all"


def test_the_table_and_what_is_told_of_it_have_bounds() -> None:
    reachability = KvReachability()
    for number in range(PEERS_MAX + 5):
        reachability.add(f"p{number}", f"h:{number}", 0.0)
    assert len(reachability.due([], 10.0)) == PEERS_MAX
    assert len(reachability.unreachable(10.0)) == KV_UNREACHABLE_MAX

"""Which prefill workers a decode worker is not connected to, and when it tries again."""

from __future__ import annotations

import itertools

from common.worker.reach import (
    GRACE_SECONDS,
    KV_UNREACHABLE_MAX,
    PEERS_MAX,
    RETRY_SECONDS_MAX,
    Reach,
)

AT, RANKS = "10.0.0.1:7", "10.0.0.1:8,10.0.0.1:9"


def told(reach: Reach, now: float) -> dict[str, float]:
    return {each.prefill: each.for_ms for each in reach.unreachable(now)}


def test_a_connection_has_a_moment_to_come_about() -> None:
    reach = Reach()
    reach.introduced("p0", AT, 100.0)
    assert reach.look([], 101.0) == []
    assert told(reach, 100.0 + GRACE_SECONDS - 0.1) == {}
    assert told(reach, 100.0 + GRACE_SECONDS) == {"p0": GRACE_SECONDS * 1000}
    reach.look([AT], 104.0)
    assert told(reach, 200.0) == {}


def test_it_is_tried_again_less_and_less_often_and_anew_after_it_stood() -> None:
    reach = Reach()
    reach.introduced("p0", AT, 0.0)
    tried = [now for now in range(400) if reach.look([], float(now))]
    waits = [after - before for before, after in itertools.pairwise(tried)]
    assert tried[0] == 2
    assert waits[:5] == [2, 4, 8, 16, 32]
    assert set(waits[5:]) == {RETRY_SECONDS_MAX}
    reach.look([AT], 400.0)
    assert reach.look([], 401.0) == [AT], "one that was lost is tried at once"
    assert told(reach, 401.0 + GRACE_SECONDS) == {"p0": GRACE_SECONDS * 1000}
    assert reach.look([], 402.0) == []
    assert reach.look([], 403.0) == [AT]


def test_a_new_address_takes_the_place_of_the_old_one() -> None:
    reach = Reach()
    reach.introduced("p0", AT, 0.0)
    reach.introduced("p0", RANKS, 10.0)
    assert reach.look([], 20.0) == [RANKS]
    assert [each.kv_address for each in reach.unreachable(20.0)] == [RANKS]
    reach.look(["10.0.0.1:8"], 21.0)
    assert told(reach, 100.0) == {}, "the first rank stands for all"


def test_the_table_and_what_is_told_of_it_have_bounds() -> None:
    reach = Reach()
    for number in range(PEERS_MAX + 5):
        reach.introduced(f"p{number}", f"h:{number}", 0.0)
    assert len(reach.look([], 10.0)) == PEERS_MAX
    assert len(reach.unreachable(10.0)) == KV_UNREACHABLE_MAX

"""The breaker of a pair, alone and through the core."""

import pytest

from common.messages import KvReport, PairTrouble, Prefill
from services.router.admin import pair_rows
from services.router.events import Note, PairsCleared
from services.router.placement.pair_breaker import (
    BACKOFF_SECONDS,
    BACKOFF_SECONDS_MAX,
    PAIRS_MAX,
    STRIKES,
    WINDOW_SECONDS,
    PairBreakers,
    PairState,
)
from tests.unit.services.router.rig import MOVED, Rig

A = ("p0|1", "d0|1")
NOTHING = KvReport(retries=3)
PART = KvReport(blocks=2, messages=1, payload_bytes=2048, retries=3)


def strike(pairs: PairBreakers, n: int, now: float, kind: str = "transfer") -> bool:
    return pairs.record_failure(A, (f"r{n}", 1), kind, "", now) is not None


@pytest.fixture
def pairs() -> PairBreakers:
    return PairBreakers()


def test_a_wrong_digest_opens_at_once(pairs: PairBreakers) -> None:
    assert strike(pairs, 1, 100.0, "digest")
    assert pairs.refresh_excluded(100.0) == {A}
    assert pairs.refresh_excluded(100.0 + BACKOFF_SECONDS - 0.01) == {A}
    assert pairs.refresh_excluded(100.0 + BACKOFF_SECONDS) == frozenset()


def test_transfers_open_after_several_in_a_window(pairs: PairBreakers) -> None:
    assert [strike(pairs, n, 100.0 + n) for n in range(STRIKES)] == [False, False, True]
    slow = PairBreakers()
    step = WINDOW_SECONDS / (STRIKES - 1)
    assert not any(strike(slow, n, 100.0 + n * step) for n in range(10))


def test_two_reports_of_one_handoff_are_one_strike(pairs: PairBreakers) -> None:
    assert not any(strike(pairs, 1, 100.0 + n) for n in range(10))


def test_one_trial_at_a_time_then_closed(pairs: PairBreakers) -> None:
    strike(pairs, 1, 100.0, "digest")
    pairs.start_trial(A, ("r2", 1), 105.0)
    assert pairs.refresh_excluded(105.0) == {A}, "others wait for the trial"
    assert pairs.refresh_excluded(1000.0) == {A}
    assert pairs.record_success(A, 105.5) is not None
    assert pairs.refresh_excluded(105.5) == frozenset()
    assert pairs.rows()[0].state is PairState.CLOSED


def test_each_failed_trial_doubles_the_wait_up_to_the_limit() -> None:
    pairs, now = PairBreakers(), 100.0
    waits = []
    for n in range(10):
        kind = "transfer" if n else "digest"
        assert strike(pairs, n, now, kind), "a trial that fails opens, whatever failed"
        waits.append(pairs.rows()[0].until - now) if n else None
        now = pairs.rows()[0].until
        pairs.start_trial(A, (f"r{n + 1}", 1), now)
    assert waits[:4] == [10.0, 20.0, 40.0, 80.0]
    assert waits[-1] == BACKOFF_SECONDS_MAX
    pairs.record_success(A, now)
    strike(pairs, 99, now, "digest")
    assert pairs.rows()[0].until - now == BACKOFF_SECONDS, "one that came through starts anew"


def test_a_trial_without_a_verdict_leaves_its_place_at_once(pairs: PairBreakers) -> None:
    strike(pairs, 1, 100.0, "digest")
    pairs.start_trial(A, ("r2", 1), 110.0)
    pairs.end_trial(A, ("other", 1), 111.0)
    assert pairs.refresh_excluded(111.0) == {A}
    pairs.end_trial(A, ("r2", 1), 111.0)
    assert pairs.refresh_excluded(111.0) == frozenset()
    assert pairs.rows()[0].openings == 1


def test_late_news_of_an_open_pair_changes_nothing(pairs: PairBreakers) -> None:
    strike(pairs, 1, 100.0, "digest")
    assert not strike(pairs, 2, 101.0, "digest")
    assert pairs.record_success(A, 101.0) is None
    assert pairs.refresh_excluded(101.0) == {A}


def test_the_table_is_bounded(pairs: PairBreakers) -> None:
    for n in range(PAIRS_MAX + 10):
        pairs.record_failure((f"p{n}|1", "d0|1"), ("r", 1), "digest", "", 100.0)
    assert len(pairs) == PAIRS_MAX
    pairs.check_invariants()


def test_an_operator_clears_by_either_name(pairs: PairBreakers) -> None:
    for p in ("p0|1", "p1|1"):
        for d in ("d0|1", "d1|1"):
            pairs.record_failure((p, d), ("r", 1), "digest", "", 100.0)
    assert [pair.name for pair in pairs.clear("p0", "d1")] == [("p0|1", "d1|1")]
    assert len(pairs.clear("p1")) == 2
    assert pairs.refresh_excluded(100.0) == {A}
    assert len(pairs.clear()) == 1
    assert pairs.refresh_excluded(100.0) == frozenset()


# ---------------------------------------------------------------- through the core


@pytest.fixture
def rig() -> Rig:
    rig = Rig(policy="least_loaded")
    rig.gateway()
    rig.prefill("p0")
    rig.prefill("p1")
    rig.decode()
    return rig


def trouble(rig: Rig, name: str, kind: str, prefill: str = "p0") -> list[str]:
    """The events noted."""
    message = PairTrouble(
        request_id=name, attempt=1, prefill=prefill, prefill_incarnation="1", kind=kind
    )
    actions = rig.receive("d0|1", message)
    return [action.event for action in actions if isinstance(action, Note)]


def went(rig: Rig, name: str) -> str:
    """Its P, or empty."""
    rig.sent.clear()
    rig.submit(name)
    peers = [send.peer for send in rig.sent if isinstance(send.message, Prefill)]
    return peers[0] if peers else ""


def finish(rig: Rig, name: str, peer: str, kv: KvReport = MOVED) -> None:
    if peer:
        rig.prefilled(name, peer=peer)
    rig.started(name, kv=kv)
    rig.ended(name)


def test_a_pair_in_trouble_is_left_alone_and_tried_again(rig: Rig) -> None:
    assert went(rig, "r1") == "p0|1"
    assert trouble(rig, "r1", "digest") == ["pair.opened"]
    finish(rig, "r1", "p0|1", NOTHING)
    for n in range(4):
        assert went(rig, f"s{n}") == "p1|1"
        finish(rig, f"s{n}", "p1|1")
    row = pair_rows.rows(rig.core.shared, rig.now)[0]
    assert (row["prefill"], row["decode"], row["state"]) == ("p0", "d0", "open")
    assert pair_rows.not_paired_with(rig.core.tables, "d0|1") == ["p0"]
    rig.now += BACKOFF_SECONDS
    assert went(rig, "trial") == "p0|1"
    assert went(rig, "beside") == "p1|1"
    finish(rig, "trial", "p0|1")
    assert pair_rows.not_paired_with(rig.core.tables, "d0|1") == []
    finish(rig, "beside", "p1|1")
    assert went(rig, "after") == "p0|1"


def test_a_trial_that_brought_a_part_only_opens_again(rig: Rig) -> None:
    assert went(rig, "r1") == "p0|1"
    trouble(rig, "r1", "digest")
    finish(rig, "r1", "p0|1", NOTHING)
    assert went(rig, "between") == "p1|1"
    finish(rig, "between", "p1|1")
    rig.now += BACKOFF_SECONDS
    assert went(rig, "trial") == "p0|1"
    finish(rig, "trial", "p0|1", PART)
    assert pair_rows.not_paired_with(rig.core.tables, "d0|1") == ["p0"]
    assert pair_rows.rows(rig.core.shared, rig.now)[0]["state"] == "open"


def test_all_pairs_in_trouble_means_local(rig: Rig) -> None:
    for name, prefill in (("r1", "p0"), ("r2", "p1")):
        assert went(rig, name) == f"{prefill}|1"
        trouble(rig, name, "digest", prefill)
        finish(rig, name, f"{prefill}|1", NOTHING)
    assert went(rig, "r3") == ""
    placement = rig.known("r3").placement
    assert placement is not None
    assert "d0 is paired with no prefill worker now" in placement.sentence


def test_reports_without_kv_after_retries_count_and_a_full_cache_does_not(rig: Rig) -> None:
    for n in range(STRIKES * 2):
        peer = went(rig, f"c{n}")
        finish(rig, f"c{n}", peer, KvReport())
    assert len(rig.core.tables.placement_memory.pairs) == 0
    rig.gone("p1|1")
    for n in range(STRIKES):
        assert went(rig, f"f{n}") == "p0|1"
        finish(rig, f"f{n}", "p0|1", NOTHING)
    assert went(rig, "next") == ""


@pytest.mark.parametrize("why", ["unknown", "aborted", "prefill gone", "prefill failed", "other P"])
def test_what_is_no_fault_of_the_pair_is_not_held_against_it(why: str, rig: Rig) -> None:
    assert went(rig, "r1") == "p0|1"
    name, prefill = "r1", "p0"
    if why == "unknown":
        name = "nobody"
    elif why == "aborted":
        rig.cancel("r1")
    elif why == "prefill gone":
        rig.gone("p0|1")
    elif why == "prefill failed":
        rig.prefilled("r1", peer="p0|1", error="engine_failed")
    else:
        prefill = "p1"
    assert trouble(rig, name, "digest", prefill) == []
    assert len(rig.core.tables.placement_memory.pairs) == 0


def test_an_operator_lets_a_pair_try_at_once(rig: Rig) -> None:
    went(rig, "r1")
    trouble(rig, "r1", "digest")
    finish(rig, "r1", "p0|1", NOTHING)
    notes = [a for a in rig.handle(PairsCleared("p0")) if isinstance(a, Note)]
    assert [note.event for note in notes] == ["pair.cleared"]
    assert [went(rig, "r2"), went(rig, "r3")] == ["p1|1", "p0|1"]

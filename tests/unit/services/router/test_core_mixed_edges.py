"""A mixed worker where the router doubts, refuses, counts or shows workers."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import BalanceConfig
from common.errors import BatonError
from common.messages import (
    AdapterStatus,
    Beat,
    HandOver,
    HealthVerdict,
    Introduce,
    Load,
    Move,
    Refused,
)
from services.router.admin.scale_rows import phases_row
from services.router.degradation.detector import DegradationDetector
from services.router.fleet.prompt_quarantine import PromptQuarantine
from services.router.metrics.router import imbalance
from services.router.rules import measure
from services.router.rules.worker_trust import pool_of
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.test_core_mixed import M0, D, M, P, of, on_both
from tests.unit.services.router.test_core_roles import D0, GATEWAY, P0, join, refused, row, says
from tests.unit.services.router.test_core_scale import ScaleRig

PARTS = {"model": "m", "weights": "w1"}
OTHER: dict[str, Any] = {"fingerprint_parts": PARTS | {"weights": "w2"}, "fingerprint": "g"}
DOWN = HealthVerdict(reason="its canary failed", down=True)


# ------------------------------------------------------------ doubt


def test_a_worker_that_is_set_aside_for_a_prompt_computes_no_others() -> None:
    rig = of(m0=M, d0=D)
    trials = rig.core.tables.quarantine.trials
    (m0,) = rig.core.tables.snapshots.prefills()
    trials.set_aside(b"bad", [m0], 2, rig.now)
    assert list(trials.rows) == [M0]
    rig.submit("r0", prompt=400)
    assert (rig.known("r0").decode, rig.known("r0").prefill) == (D0, "")


def test_a_host_that_says_it_is_down_does_not_take_the_last_of_a_role() -> None:
    rig = of(p0=P, d0=D, m0=M)
    rig.gone(P0)
    rig.receive(M0, Beat(load=Load(), health_verdict=DOWN))
    assert row(rig, M0).ready, "nobody else prefills"
    join(rig, "p1|1", P)
    rig.receive(M0, Beat(load=Load()))
    rig.receive(M0, Beat(load=Load(), health_verdict=DOWN))
    assert not row(rig, M0).ready


def test_its_pool_is_all_that_do_a_part_of_its_work() -> None:
    rig = of(p0=P, d0=D, m0=M)
    pools = {peer: pool_of(rig.core.tables, row(rig, peer)) for peer in (P0, D0, M0)}
    names = {peer: sorted(worker.name for worker in pool) for peer, pool in pools.items()}
    assert names == {P0: ["m0", "p0"], D0: ["d0", "m0"], M0: ["d0", "m0", "p0"]}


def test_one_that_comes_back_as_the_only_one_of_a_role_gets_all_its_slots_at_once() -> None:
    rig = of(d0=D, m0=M)
    rig.gone(M0)
    join(rig, "m0|2", M, home=D)
    rig.tick(1.0, alive=(GATEWAY, D0, "m0|2"))
    assert (row(rig, "m0|2").ready, row(rig, "m0|2").slots) == (True, 8)


def test_its_own_prompts_are_no_sign_of_degradation(monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[float] = []
    monkeypatch.setattr(
        DegradationDetector,
        "record_expected_handoff",
        lambda detector, now: expected.append(now),
    )
    rig = of(m0=M, d0=D)
    row(rig, D0).set_slots(0)
    rig.submit("own", prompt=400)
    assert not expected
    row(rig, D0).set_slots(8)
    rig.submit("other", prompt=400)
    assert len(expected) == 1
    rig.gone(M0)
    rig.submit("alone", prompt=400)
    assert len(expected) == 2, "m0 should have computed it"


def test_what_ran_alone_on_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that ran for long was not what it died of, nor are others blamed for it."""
    cleared: list[bytes] = []
    rig = of(m0=M, d0=D)
    on_both(rig)
    monkeypatch.setattr(
        PromptQuarantine, "clear", lambda quarantine, digest, roles: cleared.append(digest)
    )
    rig.now += 3_600.0
    for peer in (GATEWAY, D0, M0):
        rig.beat(peer)
    rig.gone(M0)
    assert cleared == [rig.known("own").digest]


# ------------------------------------------------------------ who joins


def test_its_weights_are_those_of_all_that_decode() -> None:
    rig = Rig()
    join(rig, M0, M, home=D, fingerprint_parts=PARTS)
    rig.receive(D0, says(D0, D, **OTHER))
    (refusal,) = rig.take(Refused, D0)
    assert "has another model than m0" in refusal.message
    rig.receive("m1|1", says("m1|1", M, home=D, **OTHER))
    assert rig.take(Refused, "m1|1")


def test_no_two_of_one_name_have_a_role_in_common() -> None:
    rig = of(p0=P, p1=P, d0=D, d1=D)
    join(rig, "p0|9", D, home=D)
    assert "another worker is the mixed worker p0" in refused(rig, "decode/p0", "mixed")


def test_stores_of_all_that_prefill_connect() -> None:
    rig = Rig()
    join(rig, P0, P, pull_blocks=8)
    rig.sent.clear()
    join(rig, M0, M, home=D, pull_blocks=8)
    for peer, other in ((P0, M0), (M0, P0)):
        (introduced,) = rig.take(Introduce, peer)
        assert introduced.kv_address == row(rig, other).kv_address


def test_it_serves_adapters_as_a_decode_worker() -> None:
    rig = of(m0=M)
    sql = AdapterStatus(id="sql@1", path="/srv/sql", resident=True)
    rig.receive(M0, Beat(load=Load(), adapters=(sql,)))
    rig.submit("r0", adapter="sql@1")
    assert rig.known("r0").decode == M0
    rig.submit("r1", adapter="law@2")
    assert "no decode worker has the adapter" in rig.take(Refused)[0].message


# ------------------------------------------------------------ moves


def test_a_stream_that_leaves_it_takes_its_kv_along() -> None:
    rig = of(m0=M, d0=D)
    on_both(rig)
    ask(rig, "move", request="own", to="d0")
    rig.tick(0.6, alive=(GATEWAY, D0, M0))
    assert [move.request_id for move in rig.take(Move, M0)] == ["own"]
    rig.ended("own", peer=M0, error="moved")
    rig.submit("own", 2, moved_from=M0, resumable=True)
    (order,) = rig.take(HandOver, M0)
    assert (order.kept_attempt, order.ticket.decode) == (1, "d0")


def test_a_stream_may_come_to_it_and_who_cannot_says_why() -> None:
    rig = of(p0=P, d0=D, m0=M)
    row(rig, M0).set_slots(0)
    rig.submit("r0", resumable=True)
    rig.prefilled("r0")
    rig.started("r0", peer=D0)
    with pytest.raises(BatonError, match="m0 has no free slot"):
        ask(rig, "move", request="r0")
    with pytest.raises(BatonError, match="p0 is a prefill worker"):
        ask(rig, "move", request="r0", to="p0")
    row(rig, M0).set_slots(8)
    assert ask(rig, "move", request="r0")["could_go_to"] == ["m0"]


# ------------------------------------------------------------ figures


def test_it_is_shown_in_the_figures_of_either_role() -> None:
    rig = of(m0=M)
    (model,) = ask(rig, "status")["models"]
    assert (model["prefill_ready"], model["decode_ready"], model["active_max"]) == (1, 1, 8)
    rig.submit("r0")
    told = phases_row(rig.core.tables)["phases"]
    assert "100% busy" in told
    assert "12% of slots" in told
    rig.started("r0", peer=M0, kv=None)
    rig.ended("r0", peer=M0)
    traffic = rig.core.tables.recorder.traffic_of("model")
    traffic.requests, traffic.made, traffic.computed = 1, 8, 40
    assert imbalance(rig.core.tables)


def test_pairs_are_those_that_may_hand_over() -> None:
    rig = of(p0=P, m0=M, d0=D)
    pairs = {(pair["prefill"], pair["decode"]) for pair in ask(rig, "pairs")}
    assert pairs == {("p0", "d0"), ("m0", "d0")}


def test_one_that_is_like_nobody_is_told() -> None:
    rig = of(m0=M)
    join(rig, "m1|1", M, home=D, fingerprint="g", fingerprint_parts={"block_tokens": "8"})
    rows = {row["name"]: dict(row)["unlike"] for row in map(dict, ask(rig, "workers"))}
    assert rows["m1"].startswith("unlike m0")


# ------------------------------------------------------------ numbers


def test_one_that_became_mixed_is_not_stopped_as_what_it_was() -> None:
    rig = ScaleRig(idle_ms=1_000.0)
    rig.deaf = True
    rig.load(0.2)
    rig.pass_time(10.0)
    assert rig.is_open()
    order = rig.core.tables.scale.open
    assert order is not None
    peer = f"{order.worker}|1"
    rig.receive(peer, says(peer, M, home=D, epoch=1))
    rig.pass_time(1.0)
    assert not rig.is_open()
    assert any("has become a mixed worker" in note.sentence for note in rig.told)


def test_a_model_whose_one_worker_is_mixed_lacks_no_prefill_worker() -> None:
    rig = ScaleRig(workers=())
    rig.receive(M0, says(M0, M, home=D))
    rig.beat(M0, Load())
    rig.alive.append(M0)
    rig.pass_time(6.0)
    verdict = rig.core.tables.scale.verdict
    assert verdict is not None
    assert "there is no prefill worker" not in verdict.sentence


def test_one_that_is_gone_holds_nobody_back() -> None:
    rig = Rig(balance=BalanceConfig(mode="dry"))
    rig.gateway()
    join(rig, M0, M, home=D)
    rig.gone(M0)
    assert not measure.mixed(rig.core.tables)

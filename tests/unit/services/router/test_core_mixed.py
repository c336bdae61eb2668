"""A mixed worker is counted, given work, watched and lost as a prefill and as a decode worker."""

from __future__ import annotations

import pytest

from common.config import BalanceConfig
from common.errors import Code
from common.messages import (
    Abort,
    Beat,
    Become,
    Decode,
    Failed,
    Fleet,
    HeldAttempt,
    Holding,
    Introduce,
    Load,
    Move,
    Prefill,
    Refused,
    Role,
    Welcome,
)
from services.router.estimates.estimates import Estimates
from services.router.fleet.prompt_quarantine import Death, PromptQuarantine
from services.router.rules import measure
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.test_core_roles import (
    D0,
    D1,
    GATEWAY,
    P0,
    P1,
    join,
    refused,
    row,
    says,
    shown,
    stream,
)
from tests.unit.services.router.test_core_scale import ScaleRig

P, D, M = Role.PREFILL, Role.DECODE, Role.MIXED
M0, M1 = "m0|1", "m1|1"


def of(ttft_slo_ms: float = 0.0, **workers: Role) -> Rig:
    """A gateway and these workers, nothing left to read."""
    rig = Rig(ttft_slo_ms=ttft_slo_ms)
    rig.gateway()
    for name, role in workers.items():
        join(rig, f"{name}|1", role, home=D if role is M else role)
    rig.sent.clear()
    return rig


def on_both(rig: Rig) -> None:
    """`own` is a stream of the mixed worker; `other` one of d0, whose prompt the mixed worker
    computes."""
    others = [worker for worker in rig.core.shared.workers() if worker.role is D]
    for worker in others:
        worker.set_slots(0)
    rig.submit("own", resumable=True)
    rig.started("own", peer=M0, kv=None)
    row(rig, D0).set_slots(8)
    rig.submit("other", prompt=400, resumable=True)
    for worker in others:
        worker.set_slots(8)
    assert [rig.known(one).decode for one in ("own", "other")] == [M0, D0]
    assert rig.known("other").prefill == M0


def test_it_is_one_of_either_role() -> None:
    rig = Rig()
    rig.gateway()
    join(rig, M0, M, home=D)
    latest = rig.take(Fleet)[-1]
    assert (latest.ready, latest.prefill_ready, latest.decode_ready) == (True, 1, 1)
    told = shown(rig, "m0")
    assert (told["role"], told["configured_role"], told["state"]) == ("mixed", "decode", "ready")
    assert [worker["name"] for worker in map(dict, ask(rig, "workers", role="mixed"))] == ["m0"]
    rig.gone(M0)
    latest = rig.take(Fleet)[-1]
    assert (latest.prefill_ready, latest.decode_ready) == (0, 0)


def test_it_computes_the_prompts_of_its_streams_itself() -> None:
    rig = of(p0=P, m0=M)
    rig.submit("r0", prompt=400)
    (order,) = rig.take(Decode, M0)
    assert order.ticket is None
    assert not rig.take(Prefill)
    placement = rig.known("r0").placement
    assert placement is not None
    assert "m0 is mixed and computes the prompts of its streams itself" in placement.sentence


def test_it_computes_prompts_of_other_decode_workers() -> None:
    rig = of(m0=M, d0=D)
    rig.submit("r0", prompt=400)
    (prompt,) = rig.take(Prefill, M0)
    (order,) = rig.take(Decode, D0)
    assert order.ticket == prompt.ticket
    assert (row(rig, M0).queued_tokens, len(row(rig, M0).held)) == (400, 1)
    rig.prefilled("r0", peer=M0)
    rig.started("r0", peer=D0)
    rig.ended("r0", peer=D0)
    assert (rig.state("r0"), rig.nothing_held()) == ("ended", True)


def test_a_prompt_goes_where_no_stream_loses_by_it() -> None:
    rig = of(m0=M, p0=P, d0=D)
    row(rig, D0).set_slots(0)
    rig.submit("own")
    row(rig, D0).set_slots(8)
    rig.started("own", peer=M0, kv=None)
    row(rig, P0).last_placed_serial = 99
    row(rig, P0).set_slots(7)
    rig.submit("r0", prompt=400)
    assert rig.known("r0").prefill == P0, "though it was placed on last"


def test_both_its_works_share_its_kv_and_its_slots() -> None:
    rig = Rig()
    rig.gateway()
    join(rig, M0, M, home=D, seqs=2)
    join(rig, D0, D)
    on_both(rig)
    rig.submit("r2", prompt=400)
    assert rig.known("r2").waits_for is not None, "it has no third"
    rig.prefilled("other", peer=M0)
    rig.started("other", peer=D0)
    assert rig.known("r2").prefill == M0


def test_its_loss_loses_both_and_only_the_stream_begins_anew() -> None:
    rig = of(m0=M, d0=D)
    on_both(rig)
    rig.sent.clear()
    rig.gone(M0)
    assert [failed.request_id for failed in rig.take(Failed)] == ["own"]
    assert rig.state("other") == "placed", "d0 computes the prompt"
    rig.started("other", peer=D0, kv=None)
    rig.ended("other", peer=D0)
    assert (rig.state("other"), rig.nothing_held()) == ("ended", True)


def deaths_of(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> dict[str, Role]:
    """The prompts of which the mixed worker may have died, each with the role in which it had
    it."""
    deaths: dict[str, Role] = {}

    def record(
        self: object, digest: bytes, request_id: str, worker: str, death: Death, now: float
    ) -> None:
        deaths[request_id] = death.role

    monkeypatch.setattr(PromptQuarantine, "record_death", record)
    rig.gone(M0)
    return deaths


def test_prompts_that_it_may_have_died_of_are_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = of(m0=M, d0=D)
    on_both(rig)
    assert deaths_of(monkeypatch, rig) == {"own": D, "other": P}


def test_a_prompt_that_was_computed_is_not_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = of(m0=M, d0=D)
    on_both(rig)
    rig.prefilled("other", peer=M0)
    assert deaths_of(monkeypatch, rig) == {"own": D}


def test_a_drained_one_moves_its_streams_and_hands_its_prompts_over() -> None:
    rig = of(m0=M, d0=D, d1=D)
    on_both(rig)
    ask(rig, "drain", worker="m0")
    rig.sent.clear()
    rig.receive(M0, Beat(load=Load(running=2, kv_used=0.1), drained=True))
    rig.tick(0.6, alive=(GATEWAY, D0, D1))
    assert [move.request_id for move in rig.take(Move, M0)] == ["own"]
    assert rig.known("other").prefill == M0
    rig.submit("new", prompt=400)
    assert M0 not in (rig.known("new").decode, rig.known("new").prefill)


def test_an_evicted_one_drops_its_prompts_and_says_why() -> None:
    rig = of(m0=M, d0=D, d1=D)
    on_both(rig)
    told = ask(rig, "evict", worker="m0")
    assert (told["requests_dropped"], told["requests_moving"]) == (1, 1)
    (why,) = told["dropped_because"]
    assert "computed for others" in why
    assert [abort.request_id for abort in rig.take(Abort, M0)] == ["other"]


def test_a_router_that_knows_nothing_adopts_both() -> None:
    rig = of(m0=M, d0=D)
    here = HeldAttempt("own", 1, 40, 8, decode=M0, gateway=GATEWAY, started=True)
    there = HeldAttempt("other", 1, 400, 8, decode=D0, prefill=M0, gateway=GATEWAY)
    rig.receive(D0, Holding(attempts=(there,)))
    assert (rig.known("other").prefill, row(rig, M0).queued_tokens) == (M0, 400)
    computed = HeldAttempt("other", 1, 400, 8, D0, M0, started=True)
    rig.receive(M0, Holding(attempts=(here, computed)))
    assert row(rig, M0).queued_tokens == 0
    assert [rig.known(one).decode for one in ("own", "other")] == [M0, D0]
    assert rig.known("other").prefill == M0
    assert len(row(rig, M0).held) == 2
    rig.receive(M0, says(M0, M, home=D))
    rig.receive(M0, Holding())
    assert [failed.request_id for failed in rig.take(Failed)] == ["own"]
    assert (rig.state("other"), len(row(rig, M0).held)) == ("placed", 0)


def test_who_is_idle_for_long_may_hold_kv_for_others() -> None:
    rig = of(m0=M, d0=D)
    rig.submit("r0", prompt=400)
    rig.prefilled("r0", peer=M0)
    for _ in range(300):
        rig.now += 0.2
        rig.receive(M0, Beat(load=Load()))
    assert rig.state("r0") == "placed"


def test_who_may_hand_kv_over_connects() -> None:
    rig = of(p0=P, d0=D)
    join(rig, M0, M, home=D)
    assert [i.prefill for i in rig.take(Introduce, D0)] == ["m0", ""], "prompts, and streams"
    of_streams = [(i.prefill, i.kv_address) for i in rig.take(Introduce)]
    assert of_streams == [("", row(rig, D0).kv_address)], "and nobody hands it prompts"
    join(rig, D1, D)
    assert sorted(i.prefill for i in rig.take(Introduce, D1)) == ["", "", "m0", "p0"]


# ------------------------------------------------------------ roles


def test_a_worker_takes_both_roles_and_gives_one_back() -> None:
    rig = of(p0=P, p1=P, d0=D, d1=D)
    told = ask(rig, "role", worker="d0", role="mixed")
    assert (told["state"], told["becomes"]) == ("switching", "mixed")
    assert [(order.role, order.epoch) for order in rig.take(Become, D0)] == [(M, 1)]
    rig.receive(D0, says(D0, M, home=D, epoch=1))
    assert rig.take(Welcome, D0)
    rig.beat(D0, Load())
    assert (row(rig, D0).role, row(rig, D0).ready) == (M, True)
    snapshots = rig.core.tables.snapshots
    assert sorted(view.name for view in snapshots.prefills()) == ["d0", "p0", "p1"]
    assert sorted(view.name for view in snapshots.decodes()) == ["d0", "d1"]
    ask(rig, "role", worker="d0", role="prefill")
    rig.receive(D0, says(D0, P, home=D, epoch=2))
    rig.beat(D0, Load())
    assert sorted(view.name for view in snapshots.prefills()) == ["d0", "p0", "p1"]
    assert [view.name for view in snapshots.decodes()] == ["d1"]
    assert [snapshots.totals(role).mixed for role in (P, D)] == [0, 0]


def test_one_that_becomes_mixed_moves_its_streams_first() -> None:
    rig = of(p0=P, p1=P, d0=D, d1=D)
    left = stream(rig)
    ask(rig, "role", worker=left.partition("|")[0], role="mixed")
    rig.receive(left, Beat(load=Load(running=1), becomes=M))
    others = [peer for peer in (D0, D1) if peer != left]
    rig.tick(0.6, alive=(GATEWAY, P0, P1, *others))
    assert [move.reason for move in rig.take(Move, left)] == [
        f"this stream leaves {left[:2]}: it becomes a mixed worker"
    ]


def test_it_counts_in_either_role_when_another_leaves_its_own() -> None:
    rig = of(p0=P, d0=D)
    assert "no other decode worker of model is ready" in refused(rig, "d0", "mixed")
    join(rig, M0, M, home=D)
    rig.sent.clear()
    assert "no other prefill worker" not in ask(rig, "role", worker="p0", role="decode")["state"]
    rig.receive(P0, says(P0, D, home=P, epoch=1))
    rig.beat(P0, Load())
    rig.sent.clear()
    assert "no other prefill worker of model is ready" in refused(rig, "m0", "decode")
    assert ask(rig, "role", worker="m0", role="prefill")["becomes"] == "prefill"


def test_two_workers_become_mixed_one_after_the_other() -> None:
    """The prefill worker first: while it empties, the decode worker computes prompts itself."""
    rig = Rig(balance=BalanceConfig(mode="on"))
    rig.gateway()
    for peer, role in ((P0, P), (D0, D)):
        join(rig, peer, role)
    assert "no other decode worker of model is ready" in refused(rig, "d0", "mixed")
    ask(rig, "role", worker="p0", role="mixed")
    assert [order.role for order in rig.take(Become, P0)] == [M]
    rig.receive(P0, Beat(load=Load(), becomes=M))
    rig.tick(0.4, alive=(GATEWAY, D0))
    assert not rig.take(Become), "and its order stands"
    rig.submit("r0", prompt=400)
    assert (rig.known("r0").decode, rig.known("r0").prefill) == (D0, "")
    rig.receive(P0, says(P0, M, home=P, epoch=1))
    rig.beat(P0, Load())
    assert ask(rig, "role", worker="d0", role="mixed")["becomes"] == "mixed"
    rig.sent.clear()
    assert "no other decode worker" in refused(rig, "p0", "prefill")


def test_it_is_of_the_weights_of_both() -> None:
    rig = of(p0=P, d0=D, d1=D)
    join(rig, "p2|1", P, fingerprint="other")
    assert "it differs from p2" in refused(rig, "d0", "mixed")


def test_modes_without_prefill_workers_have_none() -> None:
    rig = Rig(mode="replicated")
    rig.receive(M0, says(M0, M, home=D))
    (refusal,) = rig.take(Refused, M0)
    assert "has no place in mode replicated" in refusal.message
    assert refusal.code == Code.INVALID_REQUEST


def test_the_controller_of_roles_leaves_all_as_it_is_and_says_so() -> None:
    rig = Rig(balance=BalanceConfig(mode="on"))
    rig.gateway()
    for peer, role in ((P0, P), (D0, D), (D1, D), (M0, M)):
        join(rig, peer, role, home=D if role is M else role)
    tables = rig.core.tables
    for n in range(3_000):
        now = rig.now + n / 10
        tables.balance.add_request(8_000, 20, now)
        tables.balance.add_prompt(8_000, 8_000, now)
        tables.balance.add_output(20, 20, now)
    rig.now += 300.0
    alive = (GATEWAY, P0, D0, D1, M0)
    for peer in alive[1:]:
        rig.beat(peer, Load())
    rig.tick(6.0, alive=alive)
    assert not rig.take(Become)
    (told,) = ask(rig, "balance")
    assert "m0 is a mixed worker" in told["why"]
    assert measure.mixed(tables)


def test_one_whose_last_fellow_left_keeps_its_role() -> None:
    rig = Rig(balance=BalanceConfig(mode="on"))
    rig.gateway()
    for peer, role in ((P0, P), (D0, D), (M0, M)):
        join(rig, peer, role, home=D if role is M else role)
    ask(rig, "role", worker="m0", role="decode")
    rig.receive(M0, Beat(load=Load(), becomes=D))
    rig.sent.clear()
    rig.gone(P0)
    rig.tick(0.2, alive=(GATEWAY, D0))
    assert [order.role for order in rig.take(Become, M0)] == [M]


def test_nobody_starts_or_stops_workers_beside_it() -> None:
    rig = ScaleRig()
    rig.receive(M0, says(M0, M, home=D))
    rig.beat(M0, Load())
    rig.alive.append(M0)
    rig.pass_time(6.0)
    rig.load(3.0)
    rig.pass_time(10.0)
    assert not rig.is_open()
    (told,) = ask(rig, "balance")
    assert "m0 is a mixed worker" in told["scale_why"]


def test_admission_predicts_by_the_worker_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all decode workers are mixed, nothing is handed over."""
    rig = of(5_000.0, m0=M, m1=M)
    asked: list[int] = []
    local = Estimates.local_prefill_seconds

    def seconds(estimates: Estimates, tokens: int) -> float:
        asked.append(tokens)
        return local(estimates, tokens)

    monkeypatch.setattr(Estimates, "local_prefill_seconds", seconds)
    rig.submit("r0")
    assert asked
    join(rig, D0, D)
    asked.clear()
    rig.submit("r1")
    assert not asked

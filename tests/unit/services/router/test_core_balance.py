"""The router watches what its prefill and decode workers could serve, and says what it would do."""

from __future__ import annotations

from typing import Any

from common.config import BalanceConfig
from common.messages import Become, Leaving, Load, Role
from services.router.events import Note
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.test_core_roles import D0, D1, GATEWAY, P0, join, says

ALL = (GATEWAY, P0, D0, D1)
IDLE = Load()


def fleet(mode: Any = "dry", **settings: Any) -> Rig:
    """One prefill worker, which is slow, and two decode workers."""
    rig = Rig(balance=BalanceConfig(mode=mode), **settings)
    rig.gateway()
    for peer in (P0, D0, D1):
        join(rig, peer, Role.PREFILL if peer == P0 else Role.DECODE)
    return rig


def serve(rig: Rig, requests: int = 60) -> list[Note]:
    """Requests whose prompts take 3 s each. Returns what the router noted of the balance."""
    notes = []
    for n in range(requests):
        rig.submit(f"r{n}")
        attempt = rig.core.tables.attempts.get((f"r{n}", 1))
        if attempt is not None and attempt.decode:
            rig.now += 0.4
            rig.prefilled(f"r{n}", peer=attempt.prefill)
            rig.started(f"r{n}", peer=attempt.decode)
            rig.ended(f"r{n}", peer=attempt.decode)
        actions = rig.tick(0.2, alive=ALL)
        notes += [a for a in actions if isinstance(a, Note) and a.event == "balance.advised"]
    return notes


def test_off_it_watches_nothing_and_says_so() -> None:
    rig = fleet("off")
    assert serve(rig) == []
    (row,) = ask(rig, "balance")
    assert (row["mode"], row["would"]) == ("off", "")
    assert row["why"] == "[router.balance] mode is off, so nothing is watched"


def test_dry_it_says_what_it_sees_and_orders_nothing() -> None:
    rig = fleet()
    serve(rig)
    (row,) = ask(rig, "balance")
    assert row["serves_per_s"].startswith("1P+2D ")
    assert row["prompt_tokens"] == 40
    assert row["output_tokens"] == 8
    assert row["requests_per_s"] > 0
    assert row["why"]
    assert not rig.take(Become)


def busy(mode: Any = "dry", **settings: Any) -> tuple[Rig, list[Note]]:
    """Ten prompts of 8,000 tokens a second came for five minutes, of which one prefill worker
    computes one a second."""
    rig = fleet(mode, **settings)
    for n in range(3_000):
        now = rig.now + n / 10
        rig.core.tables.balance.add_request(100, now)
        rig.core.tables.balance.add_prompt(8_000, now)
        rig.core.tables.balance.add_output(20, now)
    rig.now += 300.0
    for peer in ALL:
        rig.beat(peer, IDLE)
    return rig, advice(rig)


def advice(rig: Rig, seconds: float = 0.2) -> list[Note]:
    actions = rig.tick(seconds, alive=ALL)
    return [a for a in actions if isinstance(a, Note) and a.event == "balance.advised"]


def test_a_change_that_would_pay_is_advised_once_and_not_made() -> None:
    rig, notes = busy()
    assert [note.sentence.split(":")[1] for note in notes] == [
        " a worker should become a prefill worker"
    ]
    assert advice(rig, 6.0) == []
    (row,) = ask(rig, "balance")
    assert row["would"] == "one more prefill worker"
    assert "2P+1D would serve more than 1P+2D" in row["why"]
    assert not rig.take(Become)


def test_what_no_worker_may_do_is_not_advised() -> None:
    rig, _ = busy()
    ask(rig, "drain", worker="d1")
    rig.tick(6.0, alive=ALL)
    (row,) = ask(rig, "balance")
    assert row["would"] == ""
    assert row["why"]
    rig, _ = busy()
    join(rig, "p1|1", Role.PREFILL)
    rig.receive("p1|1", Leaving(reason="stopping"))
    rig.tick(6.0, alive=(*ALL, "p1|1"))
    (row,) = ask(rig, "balance")
    assert (row["would"], "no role changes during a rollout" in row["why"]) == ("", True)


def test_a_change_of_role_by_whosever_order_begins_a_pause() -> None:
    rig, _ = busy()
    rig.receive(D0, says(D0, Role.PREFILL, home=Role.DECODE, epoch=1))
    rig.receive(D0, says(D0, Role.DECODE, epoch=2))
    rig.beat(D0, IDLE)
    rig.tick(6.0, alive=ALL)
    (row,) = ask(rig, "balance")
    assert (row["would"], "but a role changed" in row["why"]) == ("", True)


def test_without_prefill_workers_there_is_nothing_to_watch() -> None:
    rig = Rig(mode="replicated", balance=BalanceConfig(mode="dry"))
    rig.tick(1.0)
    (row,) = ask(rig, "balance")
    assert (row["would"], row["why"]) == ("", "mode replicated has decode workers only")

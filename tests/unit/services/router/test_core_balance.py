"""The router watches what its prefill and decode workers could serve. It says what it would do, or
does it."""

from __future__ import annotations

from typing import Any

from common.config import BalanceConfig
from common.messages import Beat, Become, Leaving, Load, Role
from services.router.events import DrainStarted, Note, RoleOrdered
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.test_core_roles import D0, D1, GATEWAY, P0, join, refused, says

ALL = (GATEWAY, P0, D0, D1)
MORE = ("d2|1", "d3|1")
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
    load(rig)
    for peer in ALL:
        rig.beat(peer, IDLE)
    return rig, advice(rig)


def load(rig: Rig, seconds: float = 300.0) -> None:
    """So much of it."""
    for n in range(round(10 * seconds)):
        now = rig.now + n / 10
        rig.core.tables.balance.add_request(8_000, 20, now)
        rig.core.tables.balance.add_prompt(8_000, 8_000, now)
        rig.core.tables.balance.add_output(20, 20, now)
    rig.now += seconds


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


def why(rig: Rig) -> str:
    (row,) = ask(rig, "balance")
    return str(row["why"])


def look(rig: Rig, *alive: str, becomes: str = "") -> list[Note]:
    """The next look. Returns what was noted of balance and roles. `becomes`: says in its beats that
    it becomes a prefill worker."""
    actions = []
    for _ in range(26):
        if becomes:
            rig.receive(becomes, Beat(load=IDLE, becomes=Role.PREFILL))
        actions += rig.tick(0.2, alive=alive or ALL)
    notes = [action for action in actions if isinstance(action, Note)]
    return [note for note in notes if note.event.startswith(("balance.", "role."))]


def leaving(rig: Rig) -> list[str]:
    """Who was ordered to take another role."""
    return [worker.name for worker in rig.core.shared.workers() if worker.next_role is not None]


def changed(rig: Rig, peer: str = D0, role: Role = Role.PREFILL, epoch: int = 1) -> None:
    home = Role.PREFILL if peer == P0 else Role.DECODE
    rig.receive(peer, says(peer, role, home=home, epoch=epoch))
    rig.beat(peer, IDLE)


def test_on_it_orders_the_change_and_says_why() -> None:
    rig, notes = busy("on")
    assert notes == [], "what is done is not advised"
    (order,) = rig.take(Become)
    assert (order.role, order.epoch) == (Role.PREFILL, 1)
    (row,) = ask(rig, "balance")
    assert row["ordered"].startswith("d0 to prefill: 2P+1D would serve more than 1P+2D")
    assert row["ordered_s"] == 0.0
    assert row["would"] == "one more prefill worker"


def test_the_order_and_its_reason_are_events() -> None:
    rig = fleet("on")
    load(rig)
    for peer in ALL:
        rig.beat(peer, IDLE)
    ordered, role = look(rig)
    assert (ordered.event, role.event) == ("balance.ordered", "role.ordered")
    assert "decode d0 is to become a prefill worker: 2P+1D would serve more" in ordered.sentence


def test_of_several_workers_the_one_that_is_soonest_empty_changes() -> None:
    rig = fleet("on")
    rig.submit("r0")
    attempt = rig.core.tables.attempts["r0", 1]
    left = {D0: D1, D1: D0}[attempt.decode]
    load(rig)
    rig.tick(0.2, alive=ALL)
    assert rig.take(Become, left)
    assert not rig.take(Become)


def test_among_equals_one_that_has_the_role_in_the_fleet_file_changes() -> None:
    rig = fleet("on")
    join(rig, "p9|1", Role.PREFILL)
    changed(rig, "d2|1", Role.DECODE, 0)
    rig.receive("p9|1", says("p9|1", Role.DECODE, home=Role.PREFILL, epoch=1))
    rig.beat("p9|1", IDLE)
    load(rig)
    everyone = (*ALL, "p9|1", "d2|1")
    look(rig, *everyone)
    assert rig.take(Become, "p9|1")


def test_one_worker_changes_at_a_time_and_one_a_minute() -> None:
    rig, _ = busy("on")
    for peer in MORE:
        join(rig, peer, Role.DECODE)
    rig.take(Become)
    rig.receive(D0, Beat(load=IDLE))
    assert rig.take(Become, D0), "it asks again until the worker says it"
    assert look(rig, *ALL, *MORE) == []
    assert "d0 is becoming a prefill worker: it has not confirmed the order yet" in why(rig)
    assert look(rig, GATEWAY, P0, D1, *MORE, becomes=D0) == []
    assert "0 requests have to move or finish first" in why(rig)
    assert leaving(rig) == ["d0"]
    changed(rig)
    load(rig, 49.0)
    everyone = (*ALL, *MORE)
    assert look(rig, *everyone) == []
    assert "a role changed" in why(rig)
    assert leaving(rig) == []
    load(rig, 11.0)
    look(rig, *everyone)
    assert leaving(rig) == ["d1"]


def test_a_new_router_watches_first_and_counts_changes_that_it_did_not_order() -> None:
    """The order of its predecessor died with it: nobody has it, and this one asks again."""
    rig = fleet("on")
    for peer in MORE:
        join(rig, peer, Role.DECODE)
    everyone = (*ALL, *MORE)
    load(rig, 100.0)
    assert look(rig, *everyone) == []
    assert "this router has watched for less than 2 min" in why(rig)
    load(rig, 20.0)
    assert [note.event for note in look(rig, *everyone)] == ["balance.ordered", "role.ordered"]
    later = Rig(balance=BalanceConfig(mode="on"))
    later.gateway()
    for peer in (P0, D1, *MORE):
        join(later, peer, Role.PREFILL if peer == P0 else Role.DECODE)
    late = says(D0, Role.PREFILL, home=Role.DECODE, epoch=1, role_ms=5_000.0)
    load(later, 130.0)
    later.receive(D0, late)
    later.beat(D0, IDLE)
    assert look(later, *everyone) == []
    assert "a role changed 5 s ago" in why(later)


def test_nothing_changes_during_a_rollout_nor_while_the_router_stops() -> None:
    rig = fleet("on")
    ask(rig, "drain", worker="p0")
    join(rig, "p1|1", Role.PREFILL)
    load(rig)
    look(rig, *ALL, "p1|1")
    assert "no role changes during a rollout" in why(rig)
    assert not rig.take(Become)
    rig.handle(DrainStarted())
    look(rig, *ALL, "p1|1")
    assert why(rig) == "this router is stopping"


def test_a_worker_is_kept_when_it_has_become_the_last_of_its_role() -> None:
    rig, _ = busy("on")
    rig.take(Become)
    rig.receive(D0, Beat(load=Load(running=1), becomes=Role.PREFILL))
    rig.gone(D1)
    notes = [note for note in rig.tick(0.2, alive=(GATEWAY, P0)) if isinstance(note, Note)]
    (kept, stays) = [note for note in notes if note.event.startswith(("balance.", "role."))]
    assert (kept.event, stays.event) == ("balance.kept", "role.ordered")
    assert "d0 stays a decode worker, because no other decode worker" in kept.sentence
    assert rig.take(Become, D0)[0].role is Role.DECODE
    assert rig.core.tables.snapshots.totals(Role.DECODE).workers == 1


def test_two_routers_that_order_both_workers_away_keep_them() -> None:
    rig = fleet("on")
    rig.handle(RoleOrdered(D0, Role.PREFILL))
    rig.receive(D1, Beat(load=IDLE, becomes=Role.PREFILL))
    rig.take(Become)
    rig.tick(0.2, alive=(GATEWAY, P0))
    assert {order.role for order in rig.take(Become)} == {Role.DECODE}
    assert rig.core.tables.snapshots.totals(Role.DECODE).workers == 2


def test_dry_it_keeps_nobody() -> None:
    rig = fleet()
    rig.handle(RoleOrdered(D0, Role.PREFILL))
    rig.gone(D1)
    rig.take(Become)
    rig.tick(0.2, alive=(GATEWAY, P0))
    assert not rig.take(Become)


def test_a_host_that_may_not_speak_for_the_role_is_not_asked_to_take_it() -> None:
    """Its worker would be refused in the new role, and exit."""
    rig, _ = busy("on")
    rig.take(Become)
    other, _ = busy("off")
    entry = "its entry of the allow-list has the roles decode"
    other.core.shared.denied_to_host = lambda host, role, name: (
        entry if role is Role.PREFILL else ""
    )
    told = refused(other, "d0", "prefill")
    assert "may not speak for a prefill worker d0: its entry of the allow-list" in told
    assert "`baton keygen add --roles prefill,decode` gives its entry both" in told
    rig = fleet("on")
    rig.core.shared.denied_to_host = other.core.shared.denied_to_host
    load(rig)
    look(rig)
    assert not rig.take(Become)
    assert entry in why(rig)

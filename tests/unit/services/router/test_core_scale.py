"""The router has workers started and stopped: one order at a time, which gateways keep, and which
ends by a worker that comes or goes."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from common.config import ScaleConfig
from common.errors import Code
from common.messages import (
    Beat,
    Drain,
    Fleet,
    KeepOrder,
    KeptOrders,
    Leaving,
    Load,
    Refused,
    Role,
    ScaleOrder,
)
from services.router.events import (
    Action,
    CallHook,
    DrainStarted,
    HookEnded,
    Note,
    RoleOrdered,
    Tick,
    WorkerDrained,
)
from tests.rigs.messages import hello
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.test_core_roles import D0, D1, GATEWAY, P0, join

D, P = Role.DECODE, Role.PREFILL
IDLE_SECONDS = 20.0
DEADLINE_SECONDS = 100.0
SETTLED = 6.0


class ScaleRig(Rig):
    """Its gateway keeps what it is told to, unless `deaf`. `told`: all notes; `calls`: of hooks."""

    def __init__(self, workers: tuple[str, ...] = (P0, D0, D1), **scale: Any) -> None:
        more = {"floors": {"model": scale.pop("floor", 1)}, **scale.pop("settings", {})}
        config: dict[str, Any] = {
            "mode": "on",
            "out": "start",
            "in_": "stop",
            "deadline_ms": DEADLINE_SECONDS * 1000,
            "idle_ms": IDLE_SECONDS * 1000,
            "busy_max": 0.85,
        }
        super().__init__(scale=ScaleConfig(**config | scale), **more)
        self.told: list[Note] = []
        self.calls: list[CallHook] = []
        self.deaf = False
        #: Gateways that never answer.
        self.silent: set[str] = set()
        self.drained: set[str] = set()
        self.gateway()
        self.receive(GATEWAY, KeptOrders())
        self.alive = [GATEWAY, *workers]
        for peer in workers:
            join(self, peer, P if peer.startswith("p") else D)

    def handle(self, event: Any) -> list[Action]:
        actions = super().handle(event)
        self.told += [action for action in actions if isinstance(action, Note)]
        self.calls += [action for action in actions if isinstance(action, CallHook)]
        return actions

    def pass_time(self, seconds: float, load: Load | None = None) -> None:
        """All beat; the gateway answers. `load`: what workers report, by default none."""
        for _ in range(max(1, round(seconds / 0.2))):
            self.now += 0.2
            for peer in self.alive:
                drained = peer in self.drained
                self.receive(peer, Beat(load=load or Load(), drained=drained))
            self.handle(Tick())
            self.answer()

    def answer(self) -> None:
        for send in [s for s in self.sent if isinstance(s.message, KeepOrder | Drain)]:
            self.sent.remove(send)
            hears = not (self.deaf or send.peer in self.silent)
            if isinstance(send.message, Drain):
                (self.drained.add if send.message.on else self.drained.discard)(send.peer)
            elif hears and isinstance(send.message, KeepOrder):
                order = send.message.order
                self.receive(send.peer, KeptOrders(orders=() if order is None else (order,)))

    def load(self, rate: float, prompt: int = 8_000, seconds: float = 150.0) -> None:
        """So many requests per second came for so long. A prompt takes a second of its worker."""
        for n in range(round(rate * seconds)):
            at = self.now + n / rate
            self.core.tables.balance.add_request(prompt, 20, at)
            self.core.tables.balance.add_prompt(prompt, prompt, at)
            self.core.tables.balance.add_output(20, 20, at)
        self.now += seconds
        for peer in self.alive:
            self.beat(peer, Load())

    def comes(self, peer: str, role: Role) -> None:
        join(self, peer, role)
        self.alive.append(peer)

    def leaves(self, peer: str) -> None:
        self.receive(peer, Leaving(reason="stopping"))
        self.gone(peer)
        self.alive.remove(peer)

    def is_open(self) -> bool:
        """Whether an order is."""
        return self.core.tables.scale.open is not None

    @property
    def events(self) -> list[str]:
        return [note.event for note in self.told if note.event.startswith("scale.")]

    @property
    def why(self) -> str:
        (row,) = ask(self, "balance")
        return str(row["scale_why"])


def busy(**scale: Any) -> ScaleRig:
    """Two prompts a second, of which one prefill worker computes one."""
    rig = ScaleRig(**scale)
    rig.load(2.0)
    rig.pass_time(0.2)
    return rig


def idle(**scale: Any) -> ScaleRig:
    """Nobody has asked for a while."""
    rig = ScaleRig(**scale)
    rig.pass_time(IDLE_SECONDS + 6.0)
    return rig


def test_off_it_watches_nothing_and_says_so() -> None:
    rig = busy(mode="off")
    assert (rig.events, rig.take(KeepOrder)) == ([], [])
    assert rig.why == "[router.scale] mode is off, so nothing is watched"


def test_dry_it_says_once_what_it_would_order() -> None:
    rig = busy(mode="dry")
    (row,) = ask(rig, "balance")
    assert row["scale_would"] == "2 more prefill"
    rig.pass_time(12.0)
    assert rig.events == ["scale.advised"]
    assert "model needs 2 more prefill workers: 1.99 prefill workers' work" in rig.told[-1].sentence
    assert rig.take(KeepOrder) == []


def test_workers_that_lack_are_ordered_once_and_come() -> None:
    rig = busy()
    rig.pass_time(SETTLED)
    (call,) = rig.calls
    order = call.order
    assert (order.out, order.role, order.count, order.model) == (True, P, 2, "model")
    assert call.workers == ("d0", "d1", "p0")
    assert order.asked
    rig.comes("p1|1", P)
    rig.pass_time(1.0)
    assert rig.is_open(), "one of two came"
    rig.comes("p2|1", P)
    rig.pass_time(1.0)
    assert rig.events == ["scale.ordered", "scale.asked", "scale.answered"]
    assert "p1, p2 came" in rig.told[-1].sentence
    assert not rig.is_open()
    assert len(rig.calls) == 1


def test_one_that_was_here_and_starts_anew_is_no_answer() -> None:
    rig = busy(workers_max=2)
    rig.pass_time(1.0)
    rig.gone(P0)
    rig.alive.remove(P0)
    rig.comes("p0|2", P)
    rig.pass_time(1.0)
    assert rig.is_open()
    rig.comes("d7|1", D)
    rig.pass_time(1.2)
    assert rig.is_open(), "it has another role"
    rig.comes("p7|1", P)
    rig.pass_time(1.2)
    assert not rig.is_open()


def test_no_more_than_workers_max_are_ordered() -> None:
    rig = busy(workers_max=2)
    rig.pass_time(1.0)
    assert rig.calls[0].order.count == 1
    rig = busy(workers_max=1)
    rig.pass_time(1.0)
    assert rig.calls == []
    assert rig.why.endswith("but workers_max is 1 and 1 are here")


def test_an_order_is_carried_out_when_all_gateways_keep_it() -> None:
    rig = ScaleRig()
    rig.deaf = True
    other = rig.gateway("g1")
    rig.receive(other, KeptOrders())
    rig.alive.append(other)
    rig.load(2.0)
    rig.pass_time(3.0)
    assert rig.calls == []
    order = rig.core.tables.scale.wire("model", rig.now)
    assert order is not None
    rig.receive(GATEWAY, KeptOrders(orders=(order,)))
    rig.pass_time(1.0)
    assert rig.calls == []
    rig.receive(other, KeptOrders(orders=(replace(order, asked=False),)))
    rig.pass_time(1.0)
    assert rig.calls == []
    rig.receive(other, KeptOrders(orders=(order,)))
    rig.pass_time(0.2)
    assert len(rig.calls) == 1


@pytest.mark.parametrize("how", ["stops", "out of reach"])
def test_a_gateway_that_is_not_here_need_not_keep_it(how: str) -> None:
    rig = ScaleRig()
    other = rig.gateway("g1")
    rig.receive(other, KeptOrders())
    rig.alive.append(other)
    rig.silent.add(other)
    rig.load(2.0)
    rig.pass_time(2.0)
    assert rig.calls == []
    if how == "stops":
        rig.leave(other)
    else:
        rig.alive.remove(other)
        rig.gone(other)
    rig.pass_time(0.4)
    assert len(rig.calls) == 1


def test_each_step_of_an_order_is_told_at_once() -> None:
    rig = ScaleRig()
    while not rig.events:
        rig.pass_time(0.2)
    rig.pass_time(0.8)
    assert len(rig.calls) == 1


def test_without_a_gateway_that_keeps_orders_nothing_is_ordered() -> None:
    rig = ScaleRig()
    rig.receive(GATEWAY, hello(Role.GATEWAY, "g0", stream_endpoint="ipc://g0"))
    rig.load(2.0)
    rig.pass_time(1.0)
    assert rig.events == []
    assert "no gateway that uses this router keeps orders" in rig.why


def test_an_order_that_nobody_answers_has_failed_and_the_next_comes_later_and_later() -> None:
    rig = busy(backoff_ms=200_000.0)
    rig.pass_time(1.0)
    rig.handle(HookEnded("model", rig.calls[0].order.id, called=True, sentence="the hook: no room"))
    rig.handle(HookEnded("model", "another", called=False, sentence="unknown"))
    rig.pass_time(DEADLINE_SECONDS)
    assert rig.events[-1] == "scale.failed"
    assert "not enough of them came after 100 s (the hook: no room)" in rig.told[-1].sentence
    assert rig.told[-1].level == "warning"
    pauses: list[float] = []
    for _ in range(2):
        before = rig.now
        while len(rig.calls) == len(pauses) + 1:
            rig.load(2.0, seconds=10.0)
            rig.pass_time(0.2)
        pauses.append(rig.now - before)
        while rig.is_open():
            rig.pass_time(1.0)
    assert pauses[0] == pytest.approx(200, abs=20)
    assert pauses[1] == pytest.approx(400, abs=20)


def test_an_answer_ends_the_pauses_that_grow() -> None:
    rig = busy(workers_max=2)
    rig.pass_time(1.0)
    rig.pass_time(DEADLINE_SECONDS)
    assert rig.core.tables.scale.failures == 1
    while len(rig.calls) < 2:
        rig.load(2.0, seconds=10.0)
        rig.pass_time(0.2)
    rig.comes("p7|1", P)
    rig.pass_time(1.2)
    assert rig.events[-1] == "scale.answered"
    assert rig.core.tables.scale.failures == 0


def test_a_hook_that_was_surely_not_called_fails_its_order_at_once() -> None:
    rig = busy()
    rig.pass_time(1.0)
    sentence = "the hook cannot be run: no such file"
    rig.handle(HookEnded("model", rig.calls[0].order.id, called=False, sentence=sentence))
    assert rig.events[-1] == "scale.failed"
    assert sentence in rig.told[-1].sentence


def test_a_worker_that_is_not_needed_empties_and_leaves() -> None:
    rig = idle(cooldown_ms=60_000.0)
    rig.pass_time(1.0)
    assert rig.drained == {D0}
    (call,) = rig.calls
    assert (call.order.out, call.order.role, call.order.worker) == (False, D, "d0")
    rig.leaves(D0)
    rig.drained.clear()
    rig.pass_time(1.0)
    assert rig.events == ["scale.ordered", "scale.asked", "scale.answered"]
    rig.pass_time(120.0)
    assert len(rig.calls) == 1, "one of each role stays"


def test_its_hook_is_called_when_it_is_empty() -> None:
    rig = ScaleRig()
    rig.load(0.2)
    for n in range(2):
        rig.submit(f"r{n}")
    held = [peer for peer in (D0, D1) if rig.row(peer).held]
    assert held == [D0, D1]
    rig.pass_time(2.0)
    assert rig.events == ["scale.ordered"]
    assert rig.drained == {D0}
    attempt = next(key for key in rig.row(D0).held)
    rig.prefilled(attempt[0])
    rig.started(attempt[0], peer=D0)
    rig.pass_time(1.0)
    assert rig.calls == []
    rig.ended(attempt[0], peer=D0)
    rig.pass_time(1.0, Load(running=1))
    assert rig.calls == [], "its engine has something"
    rig.pass_time(1.0)
    assert rig.calls[0].order.worker == "d0"


def test_one_whose_hook_does_nothing_gets_work_again() -> None:
    rig = idle()
    rig.pass_time(DEADLINE_SECONDS + 1.0)
    assert rig.events[-1] == "scale.failed"
    assert "it is still here" in rig.told[-2].sentence + rig.told[-1].sentence
    assert rig.drained == set()


def test_it_stays_when_an_operator_resumes_it_or_others_are_lost() -> None:
    rig = ScaleRig()
    rig.load(0.2)
    rig.submit("r0")
    rig.submit("r1")
    rig.pass_time(1.0)
    rig.handle(WorkerDrained(D0, on=False))
    rig.answer()
    rig.pass_time(1.0)
    assert rig.events == ["scale.ordered", "scale.taken_back"]
    rig = idle()
    rig.deaf = True
    assert rig.events[:1] == ["scale.ordered"]


def test_the_last_of_a_role_stays_whatever_was_ordered() -> None:
    rig = ScaleRig()
    rig.load(0.2)
    rig.submit("r0")
    rig.submit("r1")
    rig.pass_time(1.0)
    assert rig.drained == {D0}
    rig.gone(D1)
    rig.alive.remove(D1)
    rig.pass_time(1.0)
    assert rig.events[-1] == "scale.taken_back"
    assert "0 other decode workers are ready, and 1 must stay" in rig.told[-2].sentence
    assert rig.drained == set()


def test_nothing_is_ordered_in_a_rollout_or_while_a_role_changes() -> None:
    rig = ScaleRig()
    rig.load(2.0)
    rig.receive(D1, Leaving(reason="stopping"))
    rig.pass_time(1.0)
    assert "d1 is draining: no role changes during a rollout" in rig.why
    rig = ScaleRig()
    rig.load(2.0)
    rig.handle(RoleOrdered(D1, P))
    rig.pass_time(1.0)
    assert "d1 is becoming a prefill worker" in rig.why
    assert rig.events == []


def test_a_router_that_stops_orders_nothing() -> None:
    rig = ScaleRig()
    rig.load(2.0)
    rig.handle(DrainStarted())
    rig.pass_time(1.0)
    assert rig.events == []


def test_it_watches_for_the_long_window_first() -> None:
    rig = ScaleRig()
    rig.load(2.0, seconds=60.0)
    rig.pass_time(1.0)
    assert rig.events == []
    assert "this router has watched for less than 2 min" in rig.why


def kept(**more: Any) -> ScaleOrder:
    about: dict[str, Any] = {
        "id": "r9-1-1",
        "model": "model",
        "role": P,
        "out": True,
        "count": 1,
        "why": "because",
        "age_ms": 5_000.0,
        "remaining_ms": 50_000.0,
        "asked": True,
        "names": ("p0", "d0", "d1"),
    }
    return ScaleOrder(**about | more)


def test_a_router_that_takes_over_waits_for_the_order_of_the_earlier_one() -> None:
    rig = ScaleRig()
    rig.receive(GATEWAY, KeptOrders(orders=(kept(),)))
    rig.load(2.0, seconds=30.0)
    rig.pass_time(6.0)
    assert rig.events == ["scale.adopted"]
    rig.comes("p7|1", P)
    rig.pass_time(1.2)
    assert rig.events == ["scale.adopted", "scale.answered"]
    rig.receive(GATEWAY, KeptOrders(orders=(kept(),)))
    rig.pass_time(1.0)
    assert rig.events == ["scale.adopted", "scale.answered"], "it is over"
    assert rig.calls == []


def test_one_whose_hook_was_not_called_goes_on_emptying() -> None:
    rig = ScaleRig()
    order = kept(role=D, out=False, worker="d1", asked=False)
    rig.receive(GATEWAY, KeptOrders(orders=(order,)))
    rig.pass_time(2.0)
    assert rig.drained == {D1}
    assert [call.order.worker for call in rig.calls] == ["d1"]


def test_a_router_that_takes_over_waits_for_the_worker_to_say_hello() -> None:
    rig = ScaleRig(workers=(P0, D0))
    order = kept(role=D, out=False, worker="d1", asked=False)
    rig.receive(GATEWAY, KeptOrders(orders=(order,)))
    rig.pass_time(2.0)
    assert rig.events == ["scale.adopted"]
    rig.drained.add(D1)
    join(rig, D1, D)
    rig.alive.append(D1)
    rig.pass_time(2.0)
    assert [call.order.worker for call in rig.calls] == ["d1"]


def test_a_worker_that_was_drained_for_a_lost_order_gets_work_again() -> None:
    rig = ScaleRig(workers=(P0, D0))
    order = kept(role=D, out=False, worker="d1", asked=True, remaining_ms=10_000.0)
    rig.receive(GATEWAY, KeptOrders(orders=(order,)))
    rig.pass_time(SETTLED)
    assert rig.events == ["scale.adopted", "scale.answered"]
    rig.drained.add(D1)
    join(rig, D1, D)
    rig.alive.append(D1)
    rig.pass_time(1.0)
    assert rig.drained == set()


def test_one_whose_time_was_over_before_is_ended_and_its_worker_gets_work_again() -> None:
    rig = ScaleRig()
    rig.drained.add(D1)
    order = kept(role=D, out=False, worker="d1", remaining_ms=0.0)
    rig.receive(GATEWAY, KeptOrders(orders=(order,)))
    rig.pass_time(1.0)
    assert rig.events == ["scale.adopted", "scale.failed"]
    assert rig.drained == set()
    assert rig.calls == []


def test_an_earlier_order_goes_before_one_that_nobody_has_carried_out() -> None:
    rig = ScaleRig()
    rig.deaf = True
    rig.load(2.0)
    rig.pass_time(1.0)
    assert rig.events == ["scale.ordered"]
    rig.receive(GATEWAY, KeptOrders(orders=(kept(),)))
    assert rig.events == ["scale.ordered", "scale.taken_back", "scale.adopted"]


def test_one_that_is_carried_out_stays_and_the_gateway_is_told() -> None:
    rig = busy()
    rig.pass_time(1.0)
    ours = rig.calls[0].order.id
    rig.deaf = True
    rig.receive(GATEWAY, KeptOrders(orders=(kept(),)))
    rig.sent.clear()
    rig.now += 1.2
    rig.handle(Tick())
    assert [told.order.id for told in rig.take(KeepOrder) if told.order] == [ours]


# ------------------------------------------------------------ none at all


def zero(**more: Any) -> ScaleRig:
    return ScaleRig(workers=(), floor=0, **more)


def test_a_model_without_workers_takes_requests_and_orders_its_first_worker() -> None:
    rig = zero()
    rig.pass_time(SETTLED)
    assert rig.events == []
    assert [fleet.ready for fleet in rig.take(Fleet)] == [True]
    rig.submit("r1")
    rig.pass_time(1.0)
    (call,) = rig.calls
    assert (call.order.role, call.order.count) == (D, 1)
    rig.pass_time(30.0)
    assert rig.state("r1") == "queued"
    rig.comes(D0, D)
    rig.pass_time(1.2)
    assert rig.state("r1") == "placed"
    assert rig.core.tables.scale.start_seconds(D) == pytest.approx(31.0, abs=1.5)


def refused(rig: ScaleRig) -> Refused:
    (message,) = rig.take(Refused)
    return message


def test_who_is_refused_meanwhile_hears_how_long_it_takes() -> None:
    rig = zero(settings={"max_queue": 1})
    rig.pass_time(SETTLED)
    rig.submit("r1")
    rig.pass_time(1.0)
    rig.submit("r2")
    told = refused(rig)
    assert told.code == Code.QUEUE_FULL
    assert told.retry_after_ms / 1000 == pytest.approx(DEADLINE_SECONDS, rel=0.25)
    rig.pass_time(19.0)
    rig.comes(D0, D)
    rig.pass_time(1.2)
    rig.ended("r1", peer=D0)
    rig.gone(D0)
    rig.alive.remove(D0)
    rig.pass_time(61.0)
    rig.submit("r3")
    rig.pass_time(1.0)
    assert len(rig.calls) == 2
    rig.pass_time(10.0)
    rig.submit("r4")
    assert refused(rig).retry_after_ms / 1000 == pytest.approx(10.0, rel=0.3)


def test_a_model_that_nobody_asks_for_goes_down_to_none_decode_last() -> None:
    rig = ScaleRig(workers=(P0, D0), floor=0, cooldown_ms=0.0)
    rig.pass_time(IDLE_SECONDS + 6.0)
    assert [call.order.worker for call in rig.calls] == ["p0"]
    rig.leaves(P0)
    rig.pass_time(6.0)
    assert [call.order.worker for call in rig.calls] == ["p0", "d0"]
    rig.leaves(D0)
    rig.pass_time(1.0)
    assert not rig.is_open()


def test_a_request_keeps_the_last_one_that_empties() -> None:
    rig = ScaleRig(workers=(D0,), floor=0)
    rig.pass_time(IDLE_SECONDS)
    rig.deaf = True
    while not rig.events:
        rig.pass_time(0.2)
    assert rig.events == ["scale.ordered"]
    rig.submit("r1")
    rig.pass_time(0.4)
    assert rig.events[-1] == "scale.taken_back"

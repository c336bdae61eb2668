"""The router: the production core in a modelled shell (`services.router.daemon`)."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from common.config import AdmissionConfig, BalanceConfig, RebalanceConfig, ScaleConfig
from common.messages import Become, Decode, Message, Role
from services.router.core import Core
from services.router.estimates.worker_speeds import TRUST_SAMPLES
from services.router.events import Action, CallHook, Event, Note, PeerGone, Received, Send, Tick
from services.router.settings import Settings
from tests.simulation.world.balance_watch import PACE, BalanceWatch
from tests.simulation.world.budget_judge import GrantWatch
from tests.simulation.world.engines import STEP_SECONDS
from tests.simulation.world.move_watch import MoveWatch
from tests.simulation.world.network import Connection
from tests.simulation.world.process import Process
from tests.simulation.world.scale_watch import LOOK_SECONDS, SETTLE_SECONDS, ScaleWatch
from tests.simulation.world.watch import RouterWatch

PULSE = 0.2
REBUILD_SECONDS = 0.8
QUEUE_SECONDS = 4.0
RETRY_SHARE = 0.05
RETRY_BURST = 5.0
RETRY_PER_SECOND = 0.2
KV_YIELD = 0.2
WARM_IDLE_MS = 600.0
COPY_AHEAD_SECONDS = 0.1


def settings(
    name: str,
    incarnation: str,
    models: tuple[str, ...],
    budgets: tuple[int, ...] = (),
    controller: BalanceConfig | None = None,
    scale: tuple[ScaleConfig, int] | None = None,
    *,
    slots_ahead_max: float,
    itl_slo_ms: float,
) -> Settings:
    """Production's, with times cut so that a scenario fits into seconds, and small limits.
    `budgets`: in bytes, by class; where there are any, load is evened out too. `scale`: with the
    number of decode workers that stay."""
    parts: dict[str, Any] = {}
    if scale is not None:
        parts = {"scale": scale[0], "floors": dict.fromkeys(models, scale[1])}
    if budgets:
        parts["kv_budgets"] = budgets
        parts["rebalance"] = RebalanceConfig(mode="on", gain_min=1.0, cooldown_ms=500.0)
    return Settings(
        name=name,
        incarnation=incarnation,
        models=models,
        max_queue=12,
        queue_bytes_max=3_500,
        worker_timeout_ms=1_600.0,
        history=100_000,
        lease_ms=3_000.0,
        slots_ahead_max=slots_ahead_max,
        itl_slo_ms=itl_slo_ms,
        idle_seconds=2.0,
        rebuild_seconds=0.0 if incarnation == "1" else REBUILD_SECONDS,
        admission=AdmissionConfig(
            queue_ms_max=QUEUE_SECONDS * 1000,
            retry_share=RETRY_SHARE,
            retry_burst=RETRY_BURST,
            retry_per_min=RETRY_PER_SECOND * 60,
            kv_yield=KV_YIELD,
        ),
        warm_idle_ms=WARM_IDLE_MS,
        copy_ahead_seconds=COPY_AHEAD_SECONDS,
        balance=controller or BalanceConfig(),
        **parts,
    )


class RouterProcess(Process):
    role = Role.ROUTER

    def start(self) -> None:
        draw = self.clock.random
        self.core = Core(
            settings(
                self.name,
                self.incarnation,
                self.fleet.names,
                self.fleet.budget_bytes,
                self.fleet.controller,
                (self.fleet.scale, self.fleet.floor),
                slots_ahead_max=self.fleet.slots_ahead_max,
                itl_slo_ms=self.fleet.itl_slo_ms,
            ),
            lambda: draw.randbytes(16),
            random.Random(self.incarnation).random,
            self.clock.now,
        )
        if self.fleet.paces:
            self._know_paces()
        self._watch = RouterWatch(self)
        models = self.core.shared.models.values()
        self._moves: list[MoveWatch | GrantWatch] = [MoveWatch(self, tables) for tables in models]
        if self.fleet.budgets:
            self._moves += [GrantWatch(self, tables) for tables in models]
        self.balances: list[BalanceWatch] = []
        if self.fleet.controller.mode != "off":
            for tables in models:
                tables.balance.set_pace(PACE)
                self.balances.append(BalanceWatch(self, tables))
        self.scales: list[ScaleWatch] = []
        if self.fleet.scale.mode != "off":
            for tables in models:
                tables.balance.set_pace(PACE)
                tables.scale.look_s, tables.scale.settle_s = LOOK_SECONDS, SETTLE_SECONDS
                self.scales.append(ScaleWatch(self, tables))
        self._events: deque[Event] = deque()
        self.every(PULSE, self._pulse)
        self.every(PULSE, self._second_look)

    def _know_paces(self) -> None:
        """As a router does that has run for a while."""
        for tables in self.core.shared.models.values():
            for name, pace in self.fleet.paces.items():
                for _ in range(TRUST_SAMPLES):
                    seconds = sum(STEP_SECONDS) / 2 * pace
                    tables.estimates.record_decode(name, 1, 10, 10 * seconds)

    def heard(self, connection: Connection, message: Message, body: bytes | None) -> None:
        self.feed(Received(connection.dialer.identity, message, body))  # type: ignore[arg-type]

    def feed(self, event: Event) -> None:
        """One event and all that follow from carrying it out, as the daemon does it."""
        outer = not self._events
        self._events.append(event)
        while outer and self._events:
            self._watch.before(self._events[0])
            actions = self.core.handle(self._events[0], self.clock.now)
            self._watch.after(self._events[0], actions)
            for watch in self._moves:
                watch.after(self._events[0], actions)
            self._judge_orders(actions)
            for action in actions:
                if isinstance(action, Send):
                    self._judge_sent(action)
                    if not self.answer("control", action.peer, action.message, action.body):
                        self._events.append(PeerGone(action.peer, "its connection closed"))
                elif isinstance(action, CallHook):
                    assert self.fleet.hooks is not None
                    self.fleet.hooks.call(self, action)
                elif isinstance(action, Note) and action.event == "role.changed":
                    event = self._events[0]
                    assert isinstance(event, Received)
                    self.fleet.switch_reached("joining", event.peer)
                elif isinstance(action, Note) and action.event in ("worker.lost", "gateway.lost"):
                    self.clock.note(f"{self.name}: {action.sentence}")
            self._events.popleft()
            self._check()

    def _judge_orders(self, actions: list[Action]) -> None:
        for balance in self.balances:
            balance.after(actions)
        for scale in self.scales:
            scale.after(actions)

    def _judge_sent(self, sent: Send) -> None:
        if isinstance(sent.message, Become):
            self.fleet.switch_reached("ordered", sent.peer)
        worker = self.core.shared.worker(sent.peer)
        warm = None if worker is None else worker.warm
        if isinstance(sent.message, Decode) and worker and warm and warm.asleep:
            self.clock.violate(f"{self.name} gives a request to {worker.name}, which sleeps")

    def _check(self) -> None:
        try:
            self.core.check_invariants()
        except AssertionError as error:
            self.clock.violate(f"an invariant of {self.name} broke: {error}")

    def _pulse(self) -> None:
        self.feed(Tick())
        for peer in self.core.peers():
            if not self.reaches("control", peer):
                self.feed(PeerGone(peer, "its connection closed"))

    def _second_look(self) -> None:
        if self.core.queued:
            self.feed(Tick())

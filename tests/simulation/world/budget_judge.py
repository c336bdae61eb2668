"""What is promised of KV budgets, checked where everybody is there to keep it: no stream has a
block more than it was promised, worker and router agree on that, what is kept of a parked stream is
let go soon, and nobody gets more KV past a higher class that waits for some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.engine.port import EngineRequest
from common.identity import AttemptKey
from common.messages import BudgetReached, GrantKv
from services.router.events import Action, Event, Received, Send
from services.router.placement.types import WaitFor
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptState
from services.router.records.worker import Worker
from services.router.rules.moves import PARKED_SECONDS
from services.router.tables import Tables
from tests.simulation.world.models import FULL, blocks_held

if TYPE_CHECKING:
    from tests.simulation.world.fleet import Fleet
    from tests.simulation.world.router import RouterProcess
    from tests.simulation.world.workers import WorkerProcess

CALM_SECONDS = 1.5
LATE_SECONDS = 0.45
ANSWER_SECONDS = 0.05
"""What an answer of the router takes at most, which may be longer than a step."""


class BudgetJudge:
    """Of a world in which requests have budgets, and messages do not vanish."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: What worker and router thought when they began to differ about an attempt, and when.
        self._differ: dict[AttemptKey, tuple[int, int, float]] = {}

    def grew(self, identity: str, request: EngineRequest, tokens: int) -> None:
        """After each step of a stream."""
        key, fleet = (request.request_id, request.attempt), self._fleet
        worker = next((w for w in fleet.workers() if w.identity == identity), None)
        if worker is None or not self._calm(worker):
            return
        for router in fleet.routers():
            attempt, row = router.core.shared.attempt(key), router.core.shared.worker(identity)
            if attempt is None or attempt.adopted or row is None or not row.ready:
                continue
            if attempt.state is AttemptState.DECODING and attempt.request.kv_tokens:
                self._judge_stream(worker, attempt, row, tokens)

    def _judge_stream(
        self, worker: WorkerProcess, attempt: Attempt, row: Worker, tokens: int
    ) -> None:
        clock, capacity = self._fleet.clock, self._fleet.capacity
        part, block = attempt.request.kv_tokens, capacity.block_tokens
        if tokens >= part + block:
            clock.violate(f"{attempt.key} has {tokens} tokens, promised were {part}")
        held = worker.decode_core.held_attempt(*attempt.key)
        thought = held.kv_tokens if held is not None else part
        before = self._differ.pop(attempt.key, None)
        if thought != part:
            since = before[2] if before is not None and before[:2] == (thought, part) else clock.now
            self._differ[attempt.key] = (thought, part, since)
            if clock.now - since > ANSWER_SECONDS:
                clock.violate(f"{worker.name} thinks of {thought} tokens for {attempt.key}")
        promised = row.held.get(attempt.key, 0) // block
        needed, slack = blocks_held(capacity.kv_groups or (FULL,), part), len(capacity.kv_groups)
        if not needed <= promised <= needed + slack:
            clock.violate(f"{attempt.key} is promised {promised} blocks, not {needed}")

    def pulse(self) -> None:
        """Five times a second."""
        for worker in self._fleet.workers():
            for held in worker.decode_engine.kept.values() if self._calm(worker) else ():
                for router in self._fleet.routers():
                    self._judge_kept(router, worker, held.request)

    def _judge_kept(
        self, router: RouterProcess, worker: WorkerProcess, request: EngineRequest
    ) -> None:
        """Unless it was cut off since, or the next worker was told to take it."""
        history = router.core.tables.history
        over = history.find((request.request_id, request.attempt))
        if over is None or not over.parked or over.finished is None:
            return
        next_key = (request.request_id, request.attempt + 1)
        following = router.core.shared.attempt(next_key) or history.find(next_key)
        elsewhere = following is not None and following.decode not in ("", worker.identity)
        since = self._fleet.clock.now - over.finished
        calm = worker.calm(since + LATE_SECONDS) and self._fleet.routers_calm(since + LATE_SECONDS)
        if since > PARKED_SECONDS + LATE_SECONDS and calm and not elsewhere:
            self._fleet.clock.violate(f"{worker.name} still keeps {over.key}, parked")

    def _calm(self, worker: WorkerProcess) -> bool:
        fleet = self._fleet
        if not fleet.judge.strict or fleet.network.blocked:
            return False
        return worker.calm(CALM_SECONDS) and fleet.routers_calm(CALM_SECONDS)


class GrantWatch:
    """Of one model of a router."""

    def __init__(self, router: RouterProcess, tables: Tables) -> None:
        self._router = router
        self._tables = tables
        self._grants: dict[tuple[str, int], int] = {}

    def after(self, event: Event, actions: list[Action]) -> None:
        if not isinstance(event, Received) or not isinstance(event.message, BudgetReached):
            return
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, GrantKv):
                self._granted((action.message.request_id, action.message.attempt))

    def _granted(self, key: tuple[str, int]) -> None:
        attempt = self._tables.attempts.get(key)
        if attempt is None or attempt.grants == self._grants.get(key, 0):
            return  # it was repeated
        self._grants[key] = attempt.grants
        if not len(self._tables.waiting):
            return
        first = self._tables.waiting.head()
        higher = first.priority < attempt.priority and not first.abandoned
        if higher and first.waits_for is WaitFor.KV and not attempt.adopted:
            sentence = f"grants {key} more KV, for which {first.key} of a higher class waits"
            self._router.clock.violate(f"{self._router.name} {sentence}")

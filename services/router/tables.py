"""All state of the router core, and what must always hold of it. Only `core*.py` change it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from common.messages import Fleet, Role
from services.router.admission.limits import Limits
from services.router.admission.state import Admission
from services.router.board import Board
from services.router.degradation import Degradation
from services.router.drain_rate import DrainRate
from services.router.estimators.estimates import Estimates
from services.router.history import History
from services.router.placement_types import Ask
from services.router.placing import Placing
from services.router.poison import Poison
from services.router.records import Counts, Gateway, Key, Try, Worker
from services.router.settings import Settings
from services.router.state import ON_WORKER, TERMINAL, TryState, WorkerState
from services.router.timeline.recorder import Recorder
from services.router.waiting import Waiting

FENCED_MAX = 256
GONE_MAX = 64


class Shape(NamedTuple):
    """What a decode worker can hold at most, whoever else is there."""

    max_model_len: int
    kv_tokens_max: int
    block_tokens: int

    def holds(self, ask: Ask) -> bool:
        blocks = -(-ask.total_tokens // self.block_tokens)
        fits = blocks * self.block_tokens <= self.kv_tokens_max
        return fits and ask.total_tokens <= self.max_model_len


class Tables:
    """`tries`: those not over, by key; `current`: the newest attempt of each. `freed`: something
    that the queue waits for became free since placement last looked; `wants_prefill`: that includes
    prefill workers. `workers_changed`: what gateways were told may be stale.
    `active_before`: what ran when an operator lowered `limits.max_active`. `rebuilding`: it has
    just started, see `core_rebuild`. `doubtful`: identities of the workers that their hosts' health
    daemons have something against. `without_decode_since`: None while a decode worker is
    ready."""

    def __init__(self, settings: Settings, secrets: Callable[[], bytes], now: float) -> None:
        self.settings = settings
        self.secrets = secrets
        self.started = now
        self.last_tick = now
        self.board = Board()
        self.workers: dict[str, Worker] = {}
        self.gateways: dict[str, Gateway] = {}
        self.names: dict[tuple[Role, str], str] = {}
        self.fenced: OrderedDict[str, str] = OrderedDict()
        self.tries: dict[Key, Try] = {}
        self.current: dict[str, int] = {}
        self.active = 0
        self.active_before = 0
        self.waiting = Waiting(settings.max_queue, settings.queue_bytes_max, settings.admission)
        self.history = History(settings.history)
        self.refusals = History(settings.history)
        self.recorder = Recorder(settings.history)
        self.drain_rate = DrainRate()
        self.estimates = Estimates(settings.admission)
        self.placing = Placing(settings)
        self.admission = Admission(settings.admission, crc32(settings.incarnation.encode()))
        self.limits = Limits(
            max_active=settings.max_active,
            max_queue=settings.max_queue,
            queue_bytes_max=settings.queue_bytes_max,
            ttft_slo_ms=settings.ttft_slo_ms,
        )
        self.counts = Counts()
        self.poison = Poison(settings.liveness.deaths_max)
        self.degradation = Degradation(settings.degradation)
        self.draining = False
        self.rebuilding = settings.rebuild_seconds > 0 and settings.max_queue > 0
        self.freed = False
        self.wants_prefill = False
        self.workers_changed = False
        self.doubtful: frozenset[str] = frozenset()
        self.without_decode_since: float | None = now
        self.shapes: tuple[Shape, ...] = ()
        self.fleet = Fleet(ready=False, prefill_ready=0, decode_ready=0, max_model_len=0)

    def live_gateways(self) -> list[Gateway]:
        return [gateway for gateway in self.gateways.values() if not gateway.gone]

    def can_ever_hold(self, ask: Ask) -> bool:
        """True, too, while no decode worker is known."""
        return not self.shapes or any(shape.holds(ask) for shape in self.shapes)

    def fence(self, identity: str, by: str) -> None:
        """This incarnation is replaced and is never listened to again."""
        self.fenced[identity] = by
        if len(self.fenced) > FENCED_MAX:
            self.fenced.popitem(last=False)

    def forget_gone(self) -> None:
        """Keeps the tables bounded: of the workers and gateways lost, the latest are kept."""
        lost = [w for w in self.workers.values() if w.state is WorkerState.GONE]
        for worker in lost[: max(0, len(lost) - GONE_MAX)]:
            del self.workers[worker.identity]
            self._forget_name(worker.role, worker.name, worker.identity)
        away = [g for g in self.gateways.values() if g.gone and not g.tries]
        for gateway in away[: max(0, len(away) - GONE_MAX)]:
            del self.gateways[gateway.identity]
            self._forget_name(Role.GATEWAY, gateway.name, gateway.identity)

    def _forget_name(self, role: Role, name: str, identity: str) -> None:
        if self.names.get((role, name)) == identity:
            del self.names[role, name]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.waiting.check_invariants()
        self.placing.check_invariants()
        self.poison.check_invariants()
        self.degradation.check_invariants()
        self.history.check_invariants()
        self.refusals.check_invariants()
        self.recorder.check_invariants()
        assert len(self.fenced) <= FENCED_MAX
        queued = {each.key for each in self.waiting}
        on_worker = 0
        for key, each in self.tries.items():
            assert key == each.key
            assert each.state not in TERMINAL, f"{key} is over and still in the table"
            assert (each.state is TryState.QUEUED) == (key in queued), f"{key} and the queue"
            assert each.attempt <= self.current.get(each.request_id, each.attempt)
            assert key in self.gateways[each.gateway].tries
            on_worker += each.state in ON_WORKER
            self._check_try(each)
        assert on_worker == self.active
        assert len(queued) == len(self.waiting)
        if self.limits.max_active:
            adopted = sum(each.adopted for each in self.tries.values())
            assert self.active <= max(self.limits.max_active, self.active_before) + adopted
        self._check_admission()
        for request_id, attempt in self.current.items():
            assert (request_id, attempt) in self.tries
        for worker in self.workers.values():
            self._check_worker(worker)

    def _check_admission(self) -> None:
        state = self.admission
        assert state.charged <= self.tries.keys()
        state.keys.check_invariants(len(state.charged))
        state.returns.check_invariants()
        assert sum(state.live) == len(self.tries)
        assert state.handed.keys() <= self.tries.keys()

    def _check_try(self, each: Try) -> None:
        if each.state not in ON_WORKER:
            assert each.placement is None
            return
        assert not each.body, f"{each.key} keeps its body after placement"
        assert each.placement is not None
        decode = self.workers[each.decode]
        assert each.key in decode.held, f"{each.key} holds no credit on {decode.name}"
        if each.prefill_open:
            prefill = self.workers[each.prefill]
            assert each.key in prefill.held
            assert prefill.fingerprint == decode.fingerprint

    def _check_worker(self, worker: Worker) -> None:
        assert worker.held_tokens == sum(worker.held.values())
        view = worker.view()
        assert view.kv_tokens % view.block_tokens == 0, f"{worker.name}: not in whole blocks"
        assert view.kv_tokens_max % view.block_tokens == 0
        assert worker.queued_tokens == sum(worker.computing.values())
        assert not (worker.held and worker.away), f"{worker.name} is {worker.state.value}"
        if not any(self.tries[key].adopted for key in worker.held):
            promised = worker.held_tokens + worker.foreign_tokens
            assert not worker.held or promised <= worker.kv_tokens_max, f"{worker.name} over"
            assert len(worker.held) <= worker.capacity.max_num_seqs
        for key in worker.held:
            each = self.tries[key]
            if worker.role is Role.DECODE:
                assert each.decode == worker.identity
            else:
                assert each.prefill == worker.identity
                assert each.prefill_open
        assert worker.computing.keys() <= worker.held.keys()
        assert worker.decoding.keys() <= worker.held.keys()

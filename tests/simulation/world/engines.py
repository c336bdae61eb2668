"""Modelled engines, to the contract of `common.engine.port`: how long things take, not what they
say. The token at absolute position n of a request is a function of the request and n alone, so
whoever continues a text, in whatever attempt, says the same.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from common.blocks import HandoverOrder, keeps_part
from common.engine.port import Batch, EngineRequest, Output, engine_key
from common.identity import identity_of
from common.messages import CopyAhead, FinishReason, KvReport, Load, Role, Ticket
from tests.rigs.messages import kv_done, kv_moved
from tests.simulation.world.models import FULL, STEP, Held, blocks_held
from tests.simulation.world.process import Process

PREFILL_SECONDS = (0.004, 0.06)
STEP_SECONDS = (0.008, 0.03)
LOAD_TIMEOUT = 1.0
LEASE_SECONDS = 3.0
KEEP_SECONDS = 2.0
COPY_SECONDS = (0.002, 0.15)
CHUNK_MAX = 4
#: The first token of a prompt that kills whoever computes it.
POISON = 900_001


def token(first_prompt_id: int, position: int) -> int:
    return (first_prompt_id * 7919 + position * 31) % 50_021


class ModelEngine:
    """`slow`: how many times longer everything takes just now."""

    def __init__(self, owner: Process, emit: Callable[[Batch], None]) -> None:
        self.held: dict[str, Held] = {}
        self.slow = 1.0
        self._owner = owner
        self._clock = owner.clock
        self._groups = owner.fleet.capacity.kv_groups or (FULL,)
        self._emit = emit

    @property
    def blocks_held(self) -> int:
        return sum(map(self.blocks_of, self.held.values()))

    def blocks_of(self, held: Held) -> int:
        return held.blocks

    def load(self) -> Load:
        used = self.blocks_held / self._owner.fleet.capacity.kv_blocks
        return Load(running=len(self.held), kv_used=min(1.0, used))

    def is_killed_by(self, held: Held) -> bool:
        """Whether this is poison, of which the process has died now."""
        poison = held.request.prompt_ids[0] == POISON
        if poison:
            self._owner.fleet.poisoned(self._owner, held.request.key)
        return poison

    def moved(self, request: EngineRequest) -> int:
        """The blocks of its handoff."""
        return len(HandoverOrder(self._groups, len(request.prompt_ids)))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self._clock.after(seconds * self.slow, lambda: self._owner.when_awake(act))

    def draw(self, span: tuple[float, float]) -> float:
        return self._clock.random.uniform(*span)

    def _end(self, request: EngineRequest, **about: Any) -> None:
        """Of a handoff."""
        self._emit(Batch(kv_done=[kv_done(request.request_id, request.attempt, **about)]))


class PrefillEngine(ModelEngine):
    """Computes prompts one after the other; keeps the KV until it was taken. An attempt's KV is
    kept once, for the ticket that it was computed for: what ended is not offered again."""

    def __init__(self, owner: Process, emit: Callable[[Batch], None]) -> None:
        super().__init__(owner, emit)
        self._free_at = 0.0
        self._over: set[str] = set()

    def add(self, request: EngineRequest) -> None:
        held = Held(request, blocks_held(self._groups, len(request.prompt_ids), STEP))
        self.held[request.key] = held
        now = self._clock.now
        seconds = self.draw(PREFILL_SECONDS) * self._owner.fleet.prompt_times
        self._free_at = max(now, self._free_at) + seconds * self.slow
        self._clock.at(self._free_at, lambda: self._owner.when_awake(lambda: self._computed(held)))
        self._clock.after(LEASE_SECONDS, lambda: self._expire(held))

    def abort(self, key: str) -> None:
        held = self.held.pop(key, None)
        self._over.add(key)
        if held is not None and held.taker is not None:
            held.taker(False)

    def knows(self, key: str) -> bool:
        return key in self.held or key in self._over

    def take(self, request: EngineRequest, taker: Callable[[bool], None]) -> None:
        """D asks for a prompt's KV. `taker` hears True once it is there, False when it is not and
        will not be."""
        held = self.held.get(request.key)
        if held is None or held.request.ticket != request.ticket or request.key in self._over:
            self._clock.after(0.05, lambda: taker(False))
        elif held.computed:
            self._hand(held, taker)
        else:
            held.taker = taker

    def _hand(self, held: Held, taker: Callable[[bool], None]) -> None:
        self._leave(held)
        taker(True)
        self._end(held.request, side="send", report=kv_moved(self.moved(held.request)))

    def _computed(self, held: Held) -> None:
        if self.held.get(held.request.key) is not held or self.is_killed_by(held):
            return
        held.computed = True
        output = Output(held.request.key, [1], FinishReason.LENGTH)
        self._emit(Batch(outputs=[output]))
        if self.held.get(held.request.key) is not held:
            return
        if held.request.key in self._over:
            self._gone(held)
        elif held.taker is not None:
            self._hand(held, held.taker)
        elif held.expired:
            self._expire(held)

    def _expire(self, held: Held) -> None:
        """A prompt that is not computed yet is kept until it is: it ends in one output."""
        held.expired = True
        request = held.request
        if not self._owner.alive or self.held.get(request.key) is not held or not held.computed:
            return
        self._owner.fleet.judge.lease_expired(self._owner, request.key)
        self._gone(held)

    def _gone(self, held: Held) -> None:
        """It is not for anybody, or not any more."""
        self._leave(held)
        self._end(held.request, side="send", error="kv_transfer_failed")

    def _leave(self, held: Held) -> None:
        del self.held[held.request.key]
        self._over.add(held.request.key)


class DecodeEngine(ModelEngine):
    """Continuous batching in steps; everybody in the batch gets up to `CHUNK_MAX` tokens a step."""

    def __init__(self, owner: Process, emit: Callable[[Batch], None]) -> None:
        super().__init__(owner, emit)
        self._stepping = False
        #: Engine's keys of streams that end with the next step.
        self._leaving: list[str] = []
        #: Streams that were given up, by the engine's key, until their KV is taken or too old.
        self.kept: dict[str, Held] = {}
        #: Attempts whose KV is not here and will not come, by the engine's key.
        self._refused: set[str] = set()
        #: Tickets for what is kept, by the key of the attempt that takes it.
        self._handed: dict[str, tuple[Ticket, str]] = {}
        #: Who asked for KV before this worker was told what for.
        self.asking: dict[str, tuple[EngineRequest, Callable[[bool], None]]] = {}

    def blocks_of(self, held: Held) -> int:
        """Where streams are promised KV in parts, what they have, not what they need at most."""
        budgets = self._owner.fleet.budgets
        return blocks_held(self._groups, held.tokens) if budgets else held.blocks

    def add(self, request: EngineRequest) -> None:
        total = len(request.prompt_ids) + request.sampling.max_tokens
        held = Held(request, blocks_held(self._groups, total))
        self.held[request.key] = held
        self._let_in()

    def _let_in(self) -> None:
        """The oldest have the slots. Another waits for one before it asks for its KV."""
        for held in islice(self.held.values(), self._owner.fleet.capacity.max_num_seqs):
            if not held.entered:
                held.entered = True
                self._enter(held)

    def _enter(self, held: Held) -> None:
        ticket = held.request.ticket
        if ticket is None:
            self.after(self.draw(PREFILL_SECONDS), lambda: self._run(held))
        else:
            self.after(0.002, lambda: self._fetch(held, ticket))

    def abort(self, key: str) -> None:
        self.held.pop(key, None)
        self._let_in()
        self._refuse(key)
        kept = self.kept.get(key)
        if kept is not None:
            self._let_go(key, kept, "cancelled")

    def leave(self, key: str) -> None:
        """With the step that runs: a stream that has a token is in one."""
        if not self.held[key].emitted:
            self._clock.violate(f"{key} is to leave, and has no token")
        self._leaving.append(key)

    def leaves(self, key: str) -> bool:
        """Whether it ends with the step that runs."""
        return key in self._leaving and key in self.held

    def _left(self) -> list[Held]:
        """Those that leave after this step."""
        leaving, self._leaving = self._leaving, []
        left = [held for key in leaving if (held := self.held.pop(key, None)) is not None]
        self._let_in()
        return left

    def _keep(self, held: Held) -> None:
        key = held.request.key
        if keeps_part(self._groups):
            self._end(held.request, side="send", error="no")
            return
        self.kept[key] = held
        self._clock.after(KEEP_SECONDS, lambda: self._let_go(key, held, "kv_transfer_failed"))

    def hand_over(self, ticket: Ticket, kept_attempt: int) -> None:
        key = engine_key(ticket.request_id, ticket.attempt)
        self._handed[key] = (ticket, engine_key(ticket.request_id, kept_attempt))
        asking = self.asking.pop(key, None)
        if asking is not None:
            self.take(*asking)

    def copy_ahead(self, order: CopyAhead) -> None:
        """Copies take a while, or some are lost; of a stream that ended there is no answer."""
        if order.holder is None:
            return
        key = engine_key(order.request_id, order.attempt)
        identity = identity_of(order.holder.name, order.holder.incarnation)

        def told() -> None:
            here = self.held.get(key)
            if here is not None and self._owner.fleet.kv_engine(identity) is not None:
                self._owner.fleet.tally.copied += 1
                self._end(here.request, side="copy", held=here.emitted // STEP)

        self.after(self.draw(COPY_SECONDS), told)

    def take(self, request: EngineRequest, taker: Callable[[bool], None]) -> None:
        """As P's; the next D may ask before the router has said what for."""
        if request.key in self._refused:
            self._clock.after(0.05, lambda: taker(False))
            return
        if request.key not in self._handed:
            self.asking[request.key] = (request, taker)
            return
        ticket, kept_key = self._handed.pop(request.key)
        held = self.kept.get(kept_key)
        if held is None or ticket != request.ticket:
            self._clock.after(0.05, lambda: taker(False))
            return
        tokens = held.tokens
        if len(request.prompt_ids) > tokens:
            self._clock.violate(f"{request.key} takes KV of {tokens} tokens only")
        taker(True)
        self._owner.fleet.tally.taken += 1
        self._let_go(kept_key, held, "")

    def _refuse(self, key: str) -> None:
        self._refused.add(key)
        asking = self.asking.pop(key, None)
        if asking is not None:
            asking[1](False)

    def _let_go(self, key: str, held: Held, error: str) -> None:
        if self._owner.alive and self.kept.get(key) is held:
            del self.kept[key]
            self._end(held.request, side="send", error=error)

    def _fetch(self, held: Held, ticket: Ticket) -> None:
        fleet = self._owner.fleet
        peer = fleet.kv_engine(identity_of(ticket.prefill, ticket.prefill_incarnation))
        answered: list[bool] = []

        def taken(good: bool) -> None:
            if answered or self.held.get(held.request.key) is not held:
                return
            answered.append(good)
            self._owner.when_awake(lambda: self._loaded(held, good))

        if peer is None or not fleet.network.data_open(ticket.prefill, self._owner.name):
            self._clock.after(0.3, lambda: taken(False))
            return
        peer.take(held.request, taken)
        self._clock.after(LOAD_TIMEOUT, lambda: taken(False))

    def _loaded(self, held: Held, good: bool) -> None:
        blocks = self.moved(held.request)
        report = kv_moved(blocks) if good else KvReport(blocks=blocks // 2, retries=3)
        self._end(held.request, report=report, error="" if good else "kv_transfer_failed")
        if good:
            self._run(held)
        else:
            self.after(self.draw(PREFILL_SECONDS), lambda: self._run(held))

    def _run(self, held: Held) -> None:
        if self.held.get(held.request.key) is not held:
            return
        held.running = True
        if not self._stepping:
            self._stepping = True
            self.after(self._step_seconds(), self._step)

    def _step(self) -> None:
        running = [held for held in self.held.values() if held.running]
        if not running:
            self._stepping = False
            return
        if any(self.is_killed_by(held) for held in running):
            return
        outputs = [self._more(held) for held in running]
        left = self._left()
        self.after(self._step_seconds(), self._step)
        self._emit(Batch(outputs=outputs, left=[held.request.key for held in left]))
        for held in left:
            self._keep(held)

    def _step_seconds(self) -> float:
        return self.draw(STEP_SECONDS) * self._owner.fleet.paces.get(self._owner.name, 1.0)

    def _more(self, held: Held) -> Output:
        request = held.request
        wanted = request.sampling.max_tokens - held.emitted
        size = min(wanted, self._clock.random.randint(1, CHUNK_MAX))
        at = held.tokens
        first = request.prompt_ids[0]
        ids = [token(first, at + n) for n in range(size)]
        held.emitted += size
        if self._owner.fleet.budgets:
            judge = self._owner.fleet.budget_judge
            judge.grew(self._owner.identity, request, held.tokens)
        reason = FinishReason.LENGTH if size == wanted else ""
        if reason:
            del self.held[request.key]
        return Output(request.key, ids, reason)


class BothEngines:
    """What a mixed worker has: the two as one. A prompt is in the one, a stream in the other."""

    def __init__(self, prefill: PrefillEngine, decode: DecodeEngine) -> None:
        self._prefill = prefill
        self._decode = decode
        self._slow = 1.0

    @property
    def held(self) -> dict[str, Held]:
        return self._prefill.held | self._decode.held

    @property
    def slow(self) -> float:
        return self._slow

    @slow.setter
    def slow(self, times: float) -> None:
        self._slow = self._prefill.slow = self._decode.slow = times

    def blocks_of(self, held: Held) -> int:
        prompt = held.request.role is Role.PREFILL
        return self._prefill.blocks_of(held) if prompt else self._decode.blocks_of(held)

    def load(self) -> Load:
        one, other = self._prefill.load(), self._decode.load()
        used = min(1.0, one.kv_used + other.kv_used)
        return Load(running=one.running + other.running, kv_used=used)

    def add(self, request: EngineRequest) -> None:
        if request.role is Role.DECODE:
            self._decode.add(request)
            return
        self._prefill.add(request)
        asking = self._decode.asking.pop(request.key, None)
        if asking is not None:
            self._prefill.take(*asking)

    def abort(self, key: str) -> None:
        self._decode.abort(key)
        self._prefill.abort(key)

    def leave(self, key: str) -> None:
        self._decode.leave(key)

    def take(self, request: EngineRequest, taker: Callable[[bool], None]) -> None:
        engine = self._prefill if self._prefill.knows(request.key) else self._decode
        engine.take(request, taker)

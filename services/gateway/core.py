"""What a gateway decides: which requests it holds, what the router and the workers are told of
them.

Sans-IO. A request is in the table from `Opened` until its answer is complete, failed or unwanted,
and leaves it exactly once (`_leave`), which is also where D and the router are told, if they
still work on it. The token path is `_stepped`; everything else happens a few times per request.

A request whose worker is lost goes on as a new attempt (`recovery.py`), held as new work is until
it can be submitted; the client sees a pause.

While no router answers, new work is held for `router_wait_ms` and what was submitted but not
placed goes back to being held; after the router's welcome it is submitted again, which the router
takes as the same request. Tokens of a request that this gateway does not know are answered with
an Abort, so that a worker cannot go on for nobody; those just ended are only dropped, for their
Abort is under way.
"""

from __future__ import annotations

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages import Abort, Cancel, Delta, Failed, Fleet, Placed, Refused
from services.gateway import recovery
from services.gateway.counts import Counts
from services.gateway.entry import WAITING, Entry, State
from services.gateway.events import (
    Action,
    Closed,
    DrainExpired,
    DrainStarted,
    Event,
    FromRouter,
    Note,
    Opened,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
    ToWorker,
    WorkerGone,
    WorkerUp,
)
from services.gateway.refusals import RETRY_SOON_MS, draining, known_code, unreachable, with_length
from services.gateway.streams.journal import Seen
from services.gateway.streams.stream import Verdict
from services.gateway.table import Table


class Core:
    """The table of live requests, bounded by `max_streams`."""

    def __init__(self, limits: GatewayConfig) -> None:
        self._table = Table(limits.max_streams)
        self._router_wait = limits.router_wait_ms / 1000
        self._recovery = limits.recovery
        self._recovery_wait = limits.recovery_ms / 1000
        self._deaths_max = limits.worker_deaths_max
        self._broken: list[Entry] = []
        self._owed: list[Cancel] = []
        self.router_up = False
        self.draining = False
        self.fleet: Fleet | None = None
        self.counts = Counts()

    @property
    def active(self) -> int:
        return len(self._table)

    def busy_workers(self) -> list[bytes]:
        """Those that stream something now."""
        return self._table.busy_workers()

    def handle(self, event: Event, now: float) -> list[Action]:
        """The sole mutator. `now`: seconds, monotonic."""
        actions = self._react(event, now)
        if self._broken:
            actions += self._go_on(now)
        return actions

    def _react(self, event: Event, now: float) -> list[Action]:
        match event:
            case Stepped():
                return self._stepped(event)
            case Opened():
                return self._opened(event, now)
            case Closed():
                return self._closed(event)
            case FromRouter():
                return self._from_router(event, now)
            case RouterUp() | RouterDown():
                return self._router_came(now) if event == RouterUp() else self._router_went(now)
            case WorkerUp() | WorkerGone():
                return self._worker_changed(event)
            case Tick() | DrainStarted() | DrainExpired():
                return self._time_passed(event, now)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self._table.check_invariants(router_up=self.router_up)
        assert not self._broken

    # ------------------------------------------------------------ requests

    def _opened(self, event: Opened, now: float) -> list[Action]:
        call = event.call
        if self.draining:
            event.answer.fail(draining())
            return []
        if self._table.full:
            sentence = f"this gateway already runs {self._table.limit} requests, its limit"
            event.answer.fail(BatonError(Code.QUEUE_FULL, sentence, retry_after_ms=RETRY_SOON_MS))
            return []
        self.counts.opened += 1
        entry = Entry(
            call=call,
            stream=event.stream,
            answer=event.answer,
            caller=event.caller,
            hold_until=now + self._router_wait,
            deadline=now + call.deadline_ms / 1000 if call.deadline_ms else 0.0,
        )
        self._table.add(entry)
        return [self._submit(entry, now)] if self.router_up else []

    def _submit(self, entry: Entry, now: float) -> Action:
        entry.move(State.SUBMITTED)
        entry.submitted = True
        block_tokens = self.fleet.block_tokens if self.fleet is not None else 0
        return ToRouter(*entry.submission(now, block_tokens))

    def _closed(self, event: Closed) -> list[Action]:
        entry = self._table.entries.get(event.request_id)
        if entry is None:
            return []
        self.counts.closed += 1
        actions = self._leave(entry, State.CLOSED, event.reason, tell_worker=True, tell_router=True)
        return [*actions, Note("request.closed", event.reason, event.request_id)]

    def _fail(
        self, entry: Entry, error: BatonError, *, tell_worker: bool, tell_router: bool
    ) -> list[Action]:
        self.counts.failed += 1
        actions = self._leave(
            entry, State.FAILED, error.code.value, tell_worker=tell_worker, tell_router=tell_router
        )
        entry.answer.fail(error)
        note = Note("request.failed", error.message, entry.call.request_id)
        return [*actions, note]

    def _leave(
        self, entry: Entry, state: State, reason: str, *, tell_worker: bool, tell_router: bool
    ) -> list[Action]:
        request_id, attempt = entry.call.request_id, entry.attempt
        entry.move(state)
        worker = self._table.remove(entry)
        actions: list[Action] = []
        if tell_worker and worker:
            abort = Abort(request_id=request_id, attempt=attempt, reason=reason)
            actions.append(ToWorker(worker, abort))
        if tell_router:
            cancel = Cancel(request_id=request_id, attempt=attempt, reason=reason)
            if self.router_up:
                actions.append(ToRouter(cancel))
            elif entry.submitted and len(self._owed) < self._table.limit:
                self._owed.append(cancel)
        return actions

    # ------------------------------------------------------------ tokens

    def _stepped(self, event: Stepped) -> list[Action]:
        actions: list[Action] = []
        entries, worker = self._table.entries, event.worker
        for delta in event.deltas:
            entry = entries.get(delta.request_id)
            if entry is None:
                actions += self._unknown(worker, delta)
                continue
            if entry.worker != worker and not self._adopt(entry, worker, delta):
                self.counts.stale += 1
                continue
            verdict = entry.stream.push(delta)
            if verdict is Verdict.RUNNING:
                if entry.state is not State.STREAMING:
                    entry.move(State.STREAMING)
            elif verdict is Verdict.DROPPED:
                self.counts.stale += 1
            else:
                actions += self._last(entry, verdict)
        return actions

    def _adopt(self, entry: Entry, worker: bytes, delta: Delta) -> bool:
        """Tokens may overtake `Placed`, which comes by another way."""
        next_ = entry.stream.journal.place(delta.attempt, delta.index) is Seen.NEXT
        if entry.worker or not next_:
            return False
        self._table.assign(entry, worker)
        return True

    def _last(self, entry: Entry, verdict: Verdict) -> list[Action]:
        if verdict is Verdict.FINISHED:
            self.counts.ended += 1
            return self._leave(entry, State.ENDED, "", tell_worker=False, tell_router=False)
        if verdict is Verdict.STOPPED:
            self.counts.ended += 1
            return self._leave(
                entry, State.ENDED, "stop string", tell_worker=True, tell_router=True
            )
        error = entry.stream.error or BatonError(Code.INTERNAL, "the stream failed")
        broken = verdict is Verdict.BROKEN
        return self._break_off(entry, error, tell_worker=broken, tell_router=broken)

    def _unknown(self, worker: bytes, delta: Delta) -> list[Action]:
        self.counts.unknown += 1
        if delta.request_id in self._table.recent or delta.finish_reason or delta.error:
            return []
        reason = "unknown to this gateway"
        abort = Abort(request_id=delta.request_id, attempt=delta.attempt, reason=reason)
        return [ToWorker(worker, abort)]

    # ------------------------------------------------------------ recovery

    def _break_off(
        self, entry: Entry, error: BatonError, *, tell_worker: bool, tell_router: bool
    ) -> list[Action]:
        """Its worker is lost, or lost it: it goes on as a new attempt, or fails."""
        emitted = len(entry.stream.journal.emitted)
        lacking = recovery.obstacle(entry.call.sampling, emitted)
        if entry.worker:
            entry.deaths |= {entry.worker}
        if len(entry.deaths) >= self._deaths_max and error.code is Code.WORKER_LOST:
            error = recovery.quarantined(len(entry.deaths))
        movable = error.code in recovery.MOVABLE and not lacking and not self.draining
        if not self._recovery or not movable or entry.attempt >= recovery.ATTEMPTS_MAX:
            ended = recovery.interrupted(error, emitted, lacking)
            return self._fail(entry, ended, tell_worker=tell_worker, tell_router=tell_router)
        actions: list[Action] = []
        if tell_worker and entry.worker:
            abort = Abort(
                request_id=entry.call.request_id, attempt=entry.attempt, reason=error.code.value
            )
            actions.append(ToWorker(entry.worker, abort))
        self._table.disown(entry)
        if entry.state is not State.HELD:
            entry.move(State.HELD)
        entry.stream.journal.next_attempt()
        self._broken.append(entry)
        sentence = f"{error.message}; it goes on after {emitted} tokens as a new attempt"
        return [*actions, Note("request.recovered", sentence, entry.call.request_id)]

    def _go_on(self, now: float) -> list[Action]:
        """The new attempts of what broke off in this event."""
        broken, self._broken = self._broken, []
        self.counts.recovered += len(broken)
        for entry in broken:
            entry.hold_until, entry.retry_at = now + self._recovery_wait, 0.0
        return [self._submit(entry, now) for entry in broken] if self.router_up else []

    # ------------------------------------------------------------ router

    def _from_router(self, event: FromRouter, now: float) -> list[Action]:
        match event.message:
            case Placed() as placed:
                self._placed(placed)
            case Refused() as refused if refused.request_id:
                return self._refused(refused, now)
            case Failed() as failed:
                return self._failed(failed)
            case Fleet() as fleet:
                return self._fleet_changed(fleet)
            case _:
                pass
        return []

    def _placed(self, placed: Placed) -> None:
        entry = self._table.current(placed.request_id, placed.attempt)
        if entry is None or entry.state not in WAITING:
            return
        if entry.state is State.HELD:
            entry.move(State.SUBMITTED)
        entry.move(State.PLACED)
        self._table.assign(entry, f"{placed.decode}|{placed.decode_incarnation}".encode())

    def _refused(self, refused: Refused, now: float) -> list[Action]:
        entry = self._table.current(refused.request_id, refused.attempt)
        if entry is None or entry.state not in WAITING:
            return []
        error = BatonError(
            known_code(refused.code), refused.message, retry_after_ms=refused.retry_after_ms or None
        )
        if entry.attempt > 1 and error.face.retryable and now < entry.hold_until:
            entry.move(State.HELD)
            entry.retry_at = now + max(refused.retry_after_ms, RETRY_SOON_MS) / 1000
            return []
        emitted = len(entry.stream.journal.emitted)
        ended = recovery.interrupted(error, emitted, "")
        return self._fail(entry, ended, tell_worker=False, tell_router=False)

    def _failed(self, failed: Failed) -> list[Action]:
        entry = self._table.current(failed.request_id, failed.attempt)
        if entry is None:
            return []
        error = BatonError(known_code(failed.code), failed.message)
        return self._break_off(entry, error, tell_worker=True, tell_router=False)

    def _fleet_changed(self, fleet: Fleet) -> list[Action]:
        was, self.fleet = self.fleet, fleet
        if was is not None and not fleet.max_model_len:
            self.fleet = with_length(fleet, was.max_model_len)
        if was is not None and was.ready == fleet.ready:
            return []
        state = "can serve" if fleet.ready else f"cannot serve: {fleet.reason or 'not ready'}"
        return [Note("fleet.changed", f"the fleet {state}")]

    def _router_came(self, now: float) -> list[Action]:
        self.router_up = True
        actions: list[Action] = [ToRouter(cancel) for cancel in self._owed]
        self._owed.clear()
        return actions + self._submit_held(now)

    def _submit_held(self, now: float) -> list[Action]:
        due = [e for e in self._table if e.state is State.HELD and now >= e.retry_at]
        return [self._submit(entry, now) for entry in due]

    def _router_went(self, now: float) -> list[Action]:
        if not self.router_up:
            return []
        self.router_up = False
        for entry in self._table:
            if entry.state is State.SUBMITTED:
                entry.move(State.HELD)
                entry.hold_until = max(entry.hold_until, now + self._router_wait)
        return []

    # ------------------------------------------------------------ workers, time

    def _worker_changed(self, event: WorkerUp | WorkerGone) -> list[Action]:
        """On a new connection, streams that had spoken on the earlier one are lost; those merely
        placed may be about to begin on this one."""
        entries = self._table.of_worker(event.worker)
        if isinstance(event, WorkerGone):
            return self._lose(entries, event.worker, event.reason, tell_worker=False)
        spoken = [entry for entry in entries if entry.state is State.STREAMING]
        reason = "its stream connection was replaced"
        return self._lose(spoken, event.worker, reason, tell_worker=True)

    def _lose(
        self, entries: list[Entry], worker: bytes, reason: str, *, tell_worker: bool
    ) -> list[Action]:
        name = worker.split(b"|", 1)[0].decode(errors="replace")
        actions: list[Action] = []
        for entry in entries:
            error = BatonError(Code.WORKER_LOST, f"decode worker {name} was lost: {reason}")
            actions += self._break_off(entry, error, tell_worker=tell_worker, tell_router=True)
        return actions

    def _time_passed(self, event: Tick | DrainStarted | DrainExpired, now: float) -> list[Action]:
        match event:
            case Tick():
                actions = self._expire_held(now)
                return actions + (self._submit_held(now) if self.router_up else [])
            case DrainStarted():
                self.draining = True
                return []
            case DrainExpired():
                return self._expire_drain()

    def _expire_held(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for entry in self._table:
            if entry.state is not State.HELD:
                continue
            if entry.deadline and now >= entry.deadline:
                sentence = "the request's deadline passed before it could be placed"
                late = BatonError(Code.DEADLINE_EXCEEDED, sentence)
                actions += self._fail(entry, late, tell_worker=False, tell_router=True)
            elif now >= entry.hold_until:
                late = recovery.interrupted(unreachable(), len(entry.stream.journal.emitted), "")
                actions += self._fail(entry, late, tell_worker=False, tell_router=True)
        return actions

    def _expire_drain(self) -> list[Action]:
        actions: list[Action] = []
        for entry in self._table:
            actions += self._fail(entry, draining(), tell_worker=True, tell_router=True)
        return actions

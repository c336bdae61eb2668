"""A request's way through the gateway: opened, submitted, broken off and begun anew, ended once.

`leave` is the only way out of the table: there D and the router are told if they still work on it,
and the router what way it went. What breaks off goes on as a new attempt (`recovery.py`) once the
event that broke it has been handled: `go_on`.
"""

from __future__ import annotations

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages import Abort, Cancel, Fleet
from services.gateway import recovery
from services.gateway.counts import Counts
from services.gateway.entry import Entry, State
from services.gateway.events import Action, Closed, Note, Opened, Report, ToRouter, ToWorker
from services.gateway.legs import HELD, Legs, Moment
from services.gateway.refusals import RETRY_SOON_MS, draining
from services.gateway.table import Table
from services.gateway.tally import Tally


class Requests:
    """`owed`: cancellations for the next router. `broken`: attempts that broke off in this event.
    `fleet`: what a router said last can be served."""

    def __init__(self, limits: GatewayConfig, keys_max: int) -> None:
        self.table = Table(limits.max_streams)
        self.counts = Counts()
        self.tally = Tally(keys_max)
        self.moment = Moment()
        self.owed: list[Cancel] = []
        self.broken: list[Entry] = []
        self.router_up = False
        self.draining = False
        self.fleet: Fleet | None = None
        self._router_wait = limits.router_wait_ms / 1000
        self._recovers = limits.recovery
        self._recovery_wait = limits.recovery_ms / 1000
        self._deaths_max = limits.worker_deaths_max

    def opened(self, event: Opened, now: float) -> list[Action]:
        call = event.call
        if self.draining:
            event.answer.fail(draining())
            return []
        if self.table.full:
            sentence = f"this gateway already runs {self.table.limit} requests, its limit"
            event.answer.fail(BatonError(Code.QUEUE_FULL, sentence, retry_after_ms=RETRY_SOON_MS))
            return []
        self.counts.opened += 1
        call.timing.opened(now)
        entry = Entry(
            call=call,
            stream=event.stream,
            answer=event.answer,
            caller=event.caller,
            hold_until=now + self._router_wait,
            deadline=now + call.deadline_ms / 1000 if call.deadline_ms else 0.0,
            legs=Legs(self.moment, call.timing.arrived or now),
        )
        self.table.add(entry)
        if self.router_up:
            return [self.submit(entry, now)]
        entry.legs.turn(HELD, 1)
        return []

    def submit(self, entry: Entry, now: float) -> Action:
        entry.move(State.SUBMITTED)
        entry.resubmitted, entry.sent = entry.sent == entry.attempt, entry.attempt
        entry.submitted = True
        return self.submission(entry, now)

    def submission(self, entry: Entry, now: float) -> Action:
        return ToRouter(*entry.submission(now, self.fleet))

    def closed(self, event: Closed) -> list[Action]:
        entry = self.table.entries.get(event.request_id)
        if entry is None:
            return []
        self.counts.closed += 1
        actions = self.leave(entry, State.CLOSED, event.reason, tell_worker=True, tell_router=True)
        return [*actions, Note("request.closed", event.reason, event.request_id)]

    def fail(
        self, entry: Entry, error: BatonError, *, tell_worker: bool, tell_router: bool
    ) -> list[Action]:
        self.counts.failed += 1
        actions = self.leave(
            entry, State.FAILED, error.code.value, tell_worker=tell_worker, tell_router=tell_router
        )
        entry.answer.fail(error)
        note = Note("request.failed", error.message, entry.call.request_id)
        return [*actions, note]

    def leave(
        self, entry: Entry, state: State, reason: str, *, tell_worker: bool, tell_router: bool
    ) -> list[Action]:
        request_id, attempt = entry.call.request_id, entry.attempt
        refused = entry.state is State.SUBMITTED and attempt == 1 and not tell_router
        entry.move(state)
        worker = self.table.remove(entry)
        actions: list[Action] = []
        if tell_worker and worker:
            abort = Abort(request_id=request_id, attempt=attempt, reason=reason)
            actions.append(ToWorker(worker, abort))
        if tell_router or entry.resubmitted:
            cancel = Cancel(request_id=request_id, attempt=attempt, reason=reason)
            if self.router_up:
                actions.append(ToRouter(cancel))
            elif entry.submitted and len(self.owed) < self.table.limit:
                self.owed.append(cancel)
        journey = entry.journey(reason if state is State.FAILED else "")
        self.tally.left(journey, entry.caller.key_id)
        if not refused or state is not State.FAILED:
            actions.append(Report(journey))
        return actions

    def can_move(self, entry: Entry) -> bool:
        """Whether another worker could go on with it exactly."""
        emitted = len(entry.stream.journal.emitted)
        return self._recovers and not recovery.obstacle(entry.call.sampling, emitted, self.fleet)

    def break_off(
        self, entry: Entry, error: BatonError, *, tell_worker: bool, tell_router: bool
    ) -> list[Action]:
        """Its worker is lost, or lost it: it goes on as a new attempt, or fails."""
        emitted = len(entry.stream.journal.emitted)
        lacking = recovery.obstacle(entry.call.sampling, emitted, self.fleet)
        if entry.worker and error.code is Code.WORKER_LOST:
            entry.deaths |= {entry.worker}
        if len(entry.deaths) >= self._deaths_max and error.code is Code.WORKER_LOST:
            error = recovery.quarantined(len(entry.deaths))
        movable = error.code in recovery.MOVABLE and not lacking and not self.draining
        if not self._recovers or not movable or entry.attempt >= recovery.ATTEMPTS_MAX:
            ended = recovery.interrupted(error, emitted, lacking)
            return self.fail(entry, ended, tell_worker=tell_worker, tell_router=tell_router)
        actions: list[Action] = []
        if tell_worker and entry.worker:
            abort = Abort(
                request_id=entry.call.request_id, attempt=entry.attempt, reason=error.code.value
            )
            actions.append(ToWorker(entry.worker, abort))
        self.table.disown(entry)
        if entry.state is not State.HELD:
            entry.move(State.HELD)
        entry.stream.journal.next_attempt()
        self.broken.append(entry)
        sentence = f"{error.message}; it goes on after {emitted} tokens as a new attempt"
        return [*actions, Note("request.recovered", sentence, entry.call.request_id)]

    def go_on(self, now: float) -> list[Action]:
        """The new attempts of what broke off in this event."""
        broken, self.broken = self.broken, []
        self.counts.recovered += len(broken)
        for entry in broken:
            entry.hold_until, entry.retry_at = now + self._recovery_wait, 0.0
        return [self.submit(entry, now) for entry in broken] if self.router_up else []

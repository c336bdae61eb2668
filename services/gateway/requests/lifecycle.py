"""One request's way through the gateway: opened, submitted, interrupted and continued, ended once.

`leave` is the only way out of the table. It aborts the work at D and cancels the request at the
router where that is needed, and reports the request's summary. A request that is interrupted goes
on as a new attempt (`recovery.py`) once the event that interrupted it has been handled:
`resubmit_interrupted`.
"""

from __future__ import annotations

import enum

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.identity import name_of
from common.messages import Abandoned, Abort, Cancel, Fleet
from services.gateway.requests import recovery
from services.gateway.requests.counters import Counters
from services.gateway.requests.events import (
    Action,
    Attended,
    Closed,
    Note,
    Opened,
    Report,
    ToRouter,
    ToWorker,
)
from services.gateway.requests.kept_orders import OrderKeeper
from services.gateway.requests.refusals import (
    RETRY_SOON_MS,
    draining,
    no_token,
    unreachable,
    with_last_known,
)
from services.gateway.requests.request import LiveRequest, State
from services.gateway.requests.table import RequestTable
from services.gateway.streams.phase_timer import HELD, PhaseTimer

FLEETS_MAX = 256


class Notify(enum.Flag):
    """Who is notified that an attempt is over: its worker by an Abort, the router by a Cancel."""

    NOBODY = 0
    WORKER = enum.auto()
    ROUTER = enum.auto()
    BOTH = WORKER | ROUTER


class RequestLifecycle:
    """The state of a gateway's core, and what can happen to one request in it."""

    def __init__(self, limits: GatewayConfig, counters: Counters, table: RequestTable) -> None:
        self.table = table
        self.counters = counters
        #: Cancellations that the next router must get; at most as many as requests may live.
        self.pending_cancels: list[Cancel] = []
        #: Requests whose attempt was interrupted by the event under way.
        self.interrupted: list[LiveRequest] = []
        #: Whether a router takes messages.
        self.router_up = False
        #: Whether new requests are refused because the process stops.
        self.draining = False
        #: What the fleet can serve of each model, as a router reported it last, by the model's
        #: name; a router that does not name models has one under the empty name.
        self.fleets: dict[str, Fleet] = {}
        #: Orders for workers, for the router that gave them or its successor.
        self.orders = OrderKeeper()
        self._router_wait = limits.router_wait_ms / 1000
        self._token_wait = limits.token_wait_ms_max / 1000
        self._recovers = limits.recovery
        self._recovery_wait = limits.recovery_ms / 1000

    def opened(self, event: Opened, now: float) -> list[Action]:
        spec = event.spec
        if self.draining:
            event.answer.fail(draining())
            return []
        if self.table.full:
            sentence = f"this gateway already runs {self.table.limit} requests, its limit"
            event.answer.fail(BatonError(Code.QUEUE_FULL, sentence, retry_after_ms=RETRY_SOON_MS))
            return []
        self.counters.opened += 1
        request = LiveRequest(
            spec=spec,
            stream=event.stream,
            answer=event.answer,
            caller=event.caller,
            opened=now,
            hold_until=now + self._router_wait,
            deadline=now + spec.deadline_ms / 1000 if spec.deadline_ms else 0.0,
            timer=spec.timer or PhaseTimer(now),
            abandoned=not spec.attended,
            spilled=event.spilled,
            other_cell=event.other_cell,
        )
        self.table.add(request)
        if self.router_up:
            return [self.submit(request, now)]
        request.timer.enter(HELD, 1, now)
        return []

    def submit(self, request: LiveRequest, now: float) -> Action:
        """Gives the current attempt to the router, which must be up."""
        request.move(State.SUBMITTED, now)
        request.ask_in(self._router_wait, now)
        request.refusal = None
        request.resubmitted = request.sent == request.attempt
        request.sent = request.attempt
        request.submitted = True
        return self.submission(request, now)

    def submission(self, request: LiveRequest, now: float) -> Action:
        fleet = self.fleet_of(request.spec.model)
        return ToRouter(*request.submission(now, fleet, recovers=self._recovers))

    def fleet_changed(self, fleet: Fleet) -> list[Action]:
        fleets = self.fleets
        before = self.fleet_of(fleet.model)
        if before is not None and not fleet.max_model_len:
            fleet = with_last_known(fleet, before)
        if not fleet.model:
            fleets.clear()
        if fleet.model in fleets or len(fleets) < FLEETS_MAX:
            fleets[fleet.model] = fleet
        if before is not None and before.ready == fleet.ready:
            return []
        what = f"serve {fleet.model}".rstrip()
        state = f"can {what}" if fleet.ready else f"cannot {what}: {fleet.reason or 'not ready'}"
        return [Note("fleet.changed", f"the fleet {state}")]

    def fleet_of(self, model: str) -> Fleet | None:
        """None before a router reported it."""
        return self.fleets.get(model) or self.fleets.get("")

    def client_left_or_came(self, event: Closed | Attended, now: float) -> list[Action]:
        return self.closed(event, now) if isinstance(event, Closed) else self.attended(event)

    def closed(self, event: Closed, now: float) -> list[Action]:
        request = self.table.requests.get(event.request_id)
        if request is None:
            return []
        self.counters.closed += 1
        actions = self.leave(request, State.CLOSED, event.reason, Notify.BOTH, now)
        return [*actions, Note("request.closed", event.reason, event.request_id)]

    def attended(self, event: Attended) -> list[Action]:
        """Also of the generations that were opened for the same request of the full API."""
        actions: list[Action] = []
        for request in self.table:
            request_id = request.spec.request_id
            if request_id != event.request_id and not request_id.startswith(f"{event.request_id}-"):
                continue
            request.abandoned = not event.attended
            if self.router_up and request.submitted:
                actions.append(self.attention(request))
        return actions

    @staticmethod
    def attention(request: LiveRequest) -> Action:
        """Tells the router whether somebody reads the stream."""
        request_id, attempt = request.spec.request_id, request.attempt
        message = Abandoned(request_id=request_id, attempt=attempt, abandoned=request.abandoned)
        return ToRouter(message)

    def fail(
        self, request: LiveRequest, error: BatonError, notify: Notify, now: float
    ) -> list[Action]:
        """The request ends, and its client gets `error`."""
        self.counters.failed += 1
        actions = self.leave(request, State.FAILED, error.code.value, notify, now)
        request.answer.fail(error)
        note = Note("request.failed", error.message, request.spec.request_id)
        return [*actions, note]

    def leave(
        self, request: LiveRequest, state: State, reason: str, notify: Notify, now: float
    ) -> list[Action]:
        """`state`: a terminal one. The router gets the request's summary, save of one that it has
        just refused itself."""
        request_id, attempt = request.spec.request_id, request.attempt
        new_at_router = request.state is State.SUBMITTED and attempt == 1
        refused = state is State.FAILED and new_at_router and Notify.ROUTER not in notify
        request.move(state, now)
        worker = self.table.remove(request, now)
        actions: list[Action] = []
        if Notify.WORKER in notify and worker:
            abort = Abort(request_id=request_id, attempt=attempt, reason=reason)
            actions.append(ToWorker(worker, abort))
        if Notify.ROUTER in notify or request.resubmitted:
            cancel = Cancel(request_id=request_id, attempt=attempt, reason=reason)
            if self.router_up:
                actions.append(ToRouter(cancel))
            elif request.submitted and len(self.pending_cancels) < self.table.limit:
                self.pending_cancels.append(cancel)
        summary = request.summary(reason if state is State.FAILED else "", now)
        self.counters.request_over(request.spec.model, summary, request.caller.key_id)
        priority = request.caller.bounded(request.spec.priority)
        self.counters.of_model(request.spec.model).stream_over(
            priority, summary.completion_tokens, request.timer.messages
        )
        if not refused:
            actions.append(Report(summary))
        return actions

    def can_leave(self, request: LiveRequest) -> bool:
        """Whether another worker of its model is there and could continue it exactly."""
        emitted = len(request.stream.journal.emitted)
        fleet, sampling = self.fleet_of(request.spec.model), request.spec.sampling
        others = fleet is not None and fleet.decode_ready > 1
        return self._recovers and others and not recovery.resume_obstacle(sampling, emitted, fleet)

    def interrupt(
        self, request: LiveRequest, error: BatonError, notify: Notify, now: float
    ) -> list[Action]:
        """The attempt is over before its end. The request goes on as a new attempt where that is
        possible and allowed, otherwise it fails. `notify`: of this attempt."""
        emitted = len(request.stream.journal.emitted)
        fleet = self.fleet_of(request.spec.model)
        obstacle = recovery.resume_obstacle(request.spec.sampling, emitted, fleet)
        kept = error.code in recovery.KEPT
        stops = self.draining and not kept
        movable = error.code in recovery.MOVABLE and not obstacle and not stops
        again = kept or request.attempt < recovery.ATTEMPTS_MAX
        if not self._recovers or not movable or not again:
            error = recovery.interrupted(error, emitted, obstacle)
            return self.fail(request, error, notify, now)
        actions: list[Action] = []
        request_id = request.spec.request_id
        if Notify.WORKER in notify and request.worker:
            reason = error.code.value
            abort = Abort(request_id=request_id, attempt=request.attempt, reason=reason)
            actions.append(ToWorker(request.worker, abort))
        moves = kept and emitted
        request.moved_from = request.worker.decode(errors="replace") if moves else ""
        self.table.unassign(request)
        if request.state is not State.HELD:
            request.move(State.HELD, now)
        request.stream.journal.next_attempt()
        self.interrupted.append(request)
        sentence = f"{error.message}; it goes on after {emitted} tokens as a new attempt"
        return [*actions, Note("request.recovered", sentence, request_id)]

    def give_up(self, request: LiveRequest, now: float, *, known: bool) -> list[Action]:
        """The request goes on in another cell. `known`: whether this cell's router, or a worker,
        may still have its attempt: both are told, and it goes on as the next one."""
        actions: list[Action] = []
        request_id, attempt = request.spec.request_id, request.attempt
        worker = self.table.give_up(request)
        if worker:
            reason = "the request goes on in another cell"
            abort = Abort(request_id=request_id, attempt=attempt, reason=reason)
            actions.append(ToWorker(worker, abort))
        if known and request.submitted:
            cancel = Cancel(request_id=request_id, attempt=attempt, reason="another cell has it")
            if self.router_up:
                actions.append(ToRouter(cancel))
            elif len(self.pending_cancels) < self.table.limit:
                self.pending_cancels.append(cancel)
        if request.sent == attempt and known:
            request.stream.journal.next_attempt()
        if request.state is not State.HELD:
            request.move(State.HELD, now)
        request.left_worker = request.moved_from = ""
        request.submitted, request.sent, request.resubmitted = False, 0, False
        return actions

    def take(self, request: LiveRequest, now: float) -> list[Action]:
        """A request of another cell, which is held, goes on in this one."""
        wait = self._router_wait if request.attempt == 1 else self._recovery_wait
        request.hold_until, request.retry_at, request.refusal = now + wait, 0.0, None
        self.table.add(request)
        return [self.submit(request, now)] if self.router_up else []

    def expire(self, now: float) -> list[Action]:
        """Ends what has waited for as long as it may."""
        actions: list[Action] = []
        for request in self.table.waiting_long(now, self._token_wait):
            error = self._why_expired(request, now)
            if error is not None:
                error = recovery.interrupted(error, len(request.stream.journal.emitted), "")
                actions += self.fail(request, error, Notify.BOTH, now)
        return actions

    def end_all(self, now: float) -> list[Action]:
        """This gateway has drained for as long as it may."""
        actions: list[Action] = []
        for request in self.table:
            actions += self.fail(request, draining(), Notify.BOTH, now)
        return actions

    def _why_expired(self, request: LiveRequest, now: float) -> BatonError | None:
        silent = now - request.silent_since
        if silent >= self._token_wait:
            if request.state is State.HELD and request.refusal is not None:
                return request.refusal
            return no_token(silent, request.state, name_of(request.worker.decode(errors="replace")))
        if request.state is not State.HELD:
            return None
        if 0 < request.deadline <= now and not request.timer.first_token:
            sentence = "the request's deadline passed before it could be placed"
            return BatonError(Code.DEADLINE_EXCEEDED, sentence)
        return request.refusal or unreachable() if now >= request.hold_until else None

    def resubmit_interrupted(self, now: float) -> list[Action]:
        """Submits the new attempts of what this event interrupted, or holds them without a
        router."""
        interrupted, self.interrupted = self.interrupted, []
        self.counters.recovered += len(interrupted)
        for request in interrupted:
            request.hold_until, request.retry_at = now + self._recovery_wait, 0.0
        return [self.submit(request, now) for request in interrupted] if self.router_up else []

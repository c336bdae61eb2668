"""What a gateway decides: which requests it holds, and what it sends the router and the workers.

Sans-IO. A request is in the table from `Opened` until its answer is complete or failed, or its
client left; it leaves the table exactly once. `lifecycle.py` has what happens to one request.
Tokens take the path `_stepped`; everything else happens a few times per request.

A request whose worker is lost goes on as a new attempt (`recovery.py`). It is held, as new work is,
until it can be submitted; its client sees a pause.

While no router answers, new work is held for `router_wait_ms`, and what was submitted but not
placed is held again. After a router's welcome the gateway submits all of that. It also submits
again what was placed and has no token yet, because the order to the worker may have died with the
router. An attempt of which neither the router nor a worker says anything for `router_wait_ms` is
submitted again too, and then after twice as long each time, because the Submit, its answer or the
tokens may have been lost. The router takes all of these as the same request. Should one run twice
nevertheless, the worker that the gateway does not listen to gets an Abort.

No request waits for ever, whatever is lost: one that got no token for `token_wait_ms_max`, in
whichever state, ends with an error that says where it was.

The gateway answers tokens of a request that it does not know with an Abort, so that no worker
computes for nobody. It only drops tokens of a request that has just ended, because the Abort for
it is under way; if they still come after `ABORT_SECONDS`, that Abort was lost.
"""

from __future__ import annotations

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.identity import identity_of, name_of
from common.messages import (
    Abort,
    Delta,
    Failed,
    Fleet,
    KeepOrder,
    Live,
    Placed,
    Prefilled,
    Refused,
)
from services.gateway.requests import recovery
from services.gateway.requests.counters import Counters
from services.gateway.requests.events import (
    Action,
    Attended,
    Closed,
    DrainExpired,
    DrainStarted,
    Event,
    FromRouter,
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
from services.gateway.requests.lifecycle import Notify, RequestLifecycle
from services.gateway.requests.refusals import (
    RETRY_SOON_MS,
    known_code,
)
from services.gateway.requests.request import WAITING, LiveRequest, State
from services.gateway.requests.stalls import StallDetector
from services.gateway.requests.table import RequestTable
from services.gateway.streams.answer import ACCEPTED, PushOutcome
from services.gateway.streams.journal import DeltaOrder


class Core:
    """At most `max_streams` requests live at once."""

    def __init__(
        self,
        limits: GatewayConfig,
        counters: Counters | None = None,
        table: RequestTable | None = None,
    ) -> None:
        self._table = RequestTable(limits.max_streams) if table is None else table
        self.lifecycle = RequestLifecycle(limits, counters or Counters(), self._table)
        self._router_wait = limits.router_wait_ms / 1000
        self._stalls = StallDetector()

    @property
    def counters(self) -> Counters:
        return self.lifecycle.counters

    def fleet_of(self, model: str) -> Fleet | None:
        """What the fleet can serve of this model; None before a router reported it."""
        return self.lifecycle.fleet_of(model)

    @property
    def router_up(self) -> bool:
        return self.lifecycle.router_up

    @property
    def draining(self) -> bool:
        return self.lifecycle.draining

    @property
    def active(self) -> int:
        """The number of live requests."""
        return len(self._table)

    def live_of(self, model: str) -> tuple[int, int]:
        """The live requests for this model, and how many of them have no worker yet."""
        return self._table.counts(model)

    def busy_workers(self) -> list[bytes]:
        """The workers to which live requests are assigned."""
        return self._table.busy_workers()

    def live(self) -> Live:
        """What a router must know of this gateway after its welcome."""
        return self._table.live()

    def handle(self, event: Event, now: float) -> list[Action]:
        """The sole mutator. `now`: seconds, monotonic."""
        actions = self._handle(event, now)
        if self.lifecycle.interrupted:
            actions += self.lifecycle.resubmit_interrupted(now)
        return actions

    def _handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case Stepped():
                return self._stepped(event, now)
            case Opened():
                return self.lifecycle.opened(event, now)
            case Closed() | Attended():
                return self.lifecycle.client_left_or_came(event, now)
            case FromRouter():
                return self._from_router(event, now)
            case RouterUp() | RouterDown():
                return self._router_up(now) if event == RouterUp() else self._router_down(now)
            case WorkerUp():
                return self._worker_up(event, now)
            case WorkerGone():
                return self._worker_gone(event, now)
            case Tick() | DrainStarted() | DrainExpired():
                return self._time_passed(event, now)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self._table.check_invariants(router_up=self.router_up)
        assert not self.lifecycle.interrupted

    # ------------------------------------------------------------ tokens

    def _stepped(self, event: Stepped, now: float) -> list[Action]:
        actions: list[Action] = []
        self._heard_from(event.worker, now)
        requests, worker = self._table.requests, event.worker
        for delta in event.deltas:
            request = requests.get(delta.request_id)
            if request is None:
                actions += self._of_unknown_request(worker, delta, now)
                continue
            if request.worker != worker and not self._adopt(request, worker, delta):
                actions += self._from_wrong_worker(worker, delta)
                continue
            has_output = delta.token_ids or delta.pooled
            if request.state is not State.STREAMING and has_output:
                request.timer.output_began(now)
            outcome = request.stream.push(delta)
            if outcome is PushOutcome.DROPPED:
                self.counters.stale += 1
                continue
            if outcome in ACCEPTED and has_output:
                if request.state is not State.STREAMING:
                    request.move(State.STREAMING, now)
                gap = request.timer.token(now)
                if gap:
                    self.counters.of_model(request.spec.model).itl.observe(gap)
            if outcome is not PushOutcome.RUNNING:
                actions += self._stream_over(request, outcome, now)
        return actions

    def _heard_from(self, worker: bytes, now: float) -> None:
        """What it still sends of streams that are over does not count."""
        if self._table.is_busy(worker):
            self._stalls.record(worker, now)

    def _adopt(self, request: LiveRequest, worker: bytes, delta: Delta) -> bool:
        """Assigns the request to the worker of its first token, where no other is named yet. Tokens
        may overtake `Placed`, which comes over another connection, but not their own Submit."""
        order = request.stream.journal.order_of(delta.attempt, delta.index)
        submitted = request.sent == request.attempt
        named = request.worker and request.state not in WAITING
        if named or order is not DeltaOrder.NEXT or not submitted:
            return False
        self._table.assign(request, worker)
        return True

    def _from_wrong_worker(self, worker: bytes, delta: Delta) -> list[Action]:
        """A live request's tokens from where it does not run: it was moved, or placed twice."""
        self.counters.stale += 1
        if delta.finish_reason or delta.error:
            return []
        reason = "this request runs elsewhere"
        abort = Abort(request_id=delta.request_id, attempt=delta.attempt, reason=reason)
        return [ToWorker(worker, abort)]

    def _of_unknown_request(self, worker: bytes, delta: Delta, now: float) -> list[Action]:
        self.counters.unknown += 1
        if (
            now < self._table.recent.get(delta.request_id, 0.0)
            or delta.finish_reason
            or delta.error
        ):
            return []
        reason = "unknown to this gateway"
        abort = Abort(request_id=delta.request_id, attempt=delta.attempt, reason=reason)
        return [ToWorker(worker, abort)]

    def _stream_over(self, request: LiveRequest, outcome: PushOutcome, now: float) -> list[Action]:
        if outcome is PushOutcome.FINISHED:
            self.counters.ended += 1
            return self.lifecycle.leave(request, State.ENDED, "", Notify.NOBODY, now)
        if outcome is PushOutcome.STOPPED:
            self.counters.ended += 1
            return self.lifecycle.leave(request, State.ENDED, "stop string", Notify.BOTH, now)
        error = request.stream.error or BatonError(Code.INTERNAL, "the stream failed")
        notify = Notify.BOTH if outcome is PushOutcome.BROKEN else Notify.NOBODY
        return self.lifecycle.interrupt(request, error, notify, now)

    # ------------------------------------------------------------ router

    def _from_router(self, event: FromRouter, now: float) -> list[Action]:
        match event.message:
            case Placed() as placed:
                self._placed(placed, now)
            case Prefilled() as prefilled:
                request = self._table.current(prefilled.request_id, prefilled.attempt)
                if request is not None:
                    request.stream.journal.take_prefill_count(prefilled.cached_tokens)
            case Refused() as refused if refused.request_id:
                return self._refused(refused, now)
            case Failed() as failed:
                return self._failed(failed, now)
            case Fleet() as fleet:
                return self.lifecycle.fleet_changed(fleet)
            case KeepOrder() as order:
                return [ToRouter(self.lifecycle.orders.keep(order, now))]
        return []

    def _placed(self, placed: Placed, now: float) -> None:
        request = self._table.current(placed.request_id, placed.attempt)
        if request is None or request.state not in WAITING:
            return
        if request.state is State.HELD:
            request.move(State.SUBMITTED, now)
        request.move(State.PLACED, now)
        request.ask_in(self._router_wait, now)
        worker = identity_of(placed.decode, placed.decode_incarnation)
        self._table.assign(request, worker.encode())

    def _refused(self, refused: Refused, now: float) -> list[Action]:
        request = self._table.current(refused.request_id, refused.attempt)
        if request is None or request.state not in WAITING:
            return []
        error = BatonError(
            known_code(refused.code), refused.message, retry_after_ms=refused.retry_after_ms or None
        )
        if request.attempt > 1 and error.http.retryable and now < request.hold_until:
            if request.state is not State.HELD:
                request.move(State.HELD, now)
            request.retry_at = now + max(refused.retry_after_ms, RETRY_SOON_MS) / 1000
            request.refusal = error
            return []
        emitted = len(request.stream.journal.emitted)
        error = recovery.interrupted(error, emitted, "")
        return self.lifecycle.fail(request, error, Notify.WORKER, now)

    def _failed(self, failed: Failed, now: float) -> list[Action]:
        """A refused attempt that waits for its time is at no router: one that was started since
        does not know it, and gets it then."""
        request = self._table.current(failed.request_id, failed.attempt)
        if request is None or (request.state is State.HELD and now < request.retry_at):
            return []
        if (
            failed.code == Code.NO_CAPACITY
            and request.state is State.PLACED
            and request.attempt < recovery.PLACEMENTS_MAX
            and self.router_up
        ):
            self._table.unassign(request)
            request.stream.journal.next_attempt()
            return [self.lifecycle.submit(request, now)]
        error = BatonError(known_code(failed.code), failed.message)
        return self.lifecycle.interrupt(request, error, Notify.WORKER, now)

    def _router_up(self, now: float) -> list[Action]:
        self.lifecycle.router_up = True
        kept: Action = ToRouter(self.lifecycle.orders.kept(now))
        actions = [kept, *map(ToRouter, self.lifecycle.pending_cancels)]
        self.lifecycle.pending_cancels.clear()
        placed = [request for request in self._table if request.state is State.PLACED]
        again = [self.lifecycle.submit(request, now) for request in placed]
        left = [request for request in self._table if request.abandoned and request.submitted]
        told = [self.lifecycle.attention(request) for request in left]
        return actions + again + told + self._submit_held(now)

    def _router_down(self, now: float) -> list[Action]:
        if not self.router_up:
            return []
        self.lifecycle.router_up = False
        for request in self._table:
            if request.state is State.SUBMITTED:
                request.move(State.HELD, now)
                request.hold_until = max(request.hold_until, now + self._router_wait)
        return []

    def _submit_held(self, now: float) -> list[Action]:
        return [self.lifecycle.submit(request, now) for request in self._table.to_submit(now)]

    # ------------------------------------------------------------ workers

    def _worker_up(self, event: WorkerUp, now: float) -> list[Action]:
        """A new connection: streams that had tokens on the earlier one are interrupted; requests
        that were only placed may be about to begin on this one."""
        self._stalls.forget(event.worker)
        assigned = self._table.of_worker(event.worker)
        streaming = [request for request in assigned if request.state is State.STREAMING]
        reason = "its stream connection was replaced"
        return self._worker_lost(streaming, event.worker, reason, Notify.BOTH, now)

    def _worker_gone(self, event: WorkerGone, now: float) -> list[Action]:
        self._stalls.forget(event.worker)
        assigned = self._table.of_worker(event.worker)
        for request in assigned:
            if request.state in WAITING:
                self._table.unassign(request)
        lost = [request for request in assigned if request.worker]
        for request in lost:  # the router may not know yet that it died
            request.left_worker = event.worker.decode(errors="replace")
        return self._worker_lost(lost, event.worker, event.reason, Notify.ROUTER, now)

    def _worker_lost(
        self, requests: list[LiveRequest], worker: bytes, reason: str, notify: Notify, now: float
    ) -> list[Action]:
        actions: list[Action] = []
        sentence = f"decode worker {_worker_name(worker)} was lost: {reason}"
        for request in requests:
            error = BatonError(Code.WORKER_LOST, sentence)
            actions += self.lifecycle.interrupt(request, error, notify, now)
        return actions

    # ------------------------------------------------------------ time

    def _time_passed(self, event: Tick | DrainStarted | DrainExpired, now: float) -> list[Action]:
        match event:
            case Tick():
                return self._tick(now, event.late)
            case DrainStarted():
                self.lifecycle.draining = True
                return []
            case DrainExpired():
                return self.lifecycle.end_all(now)

    def _tick(self, now: float, late: bool) -> list[Action]:
        actions = self.lifecycle.expire(now)
        if self.router_up:
            actions += self._ask_again(now) + self._submit_held(now)
        return actions + self._leave_stalled_workers(now, late)

    def _ask_again(self, now: float) -> list[Action]:
        """Submits again, as the same attempt, what nothing was heard of."""
        silent = self._table.to_ask_again(now)
        for request in silent:
            request.ask_in(request.ask_after, now)
        return [self.lifecycle.submission(request, now) for request in silent]

    def _leave_stalled_workers(self, now: float, late: bool) -> list[Action]:
        """Streams that another worker can continue leave a worker that sends nothing. The others
        wait for it."""
        ready = sum(fleet.decode_ready for fleet in self.lifecycle.fleets.values())
        actions: list[Action] = []
        streaming = self._table.streaming_workers()
        for worker, seconds in self._stalls.stalled(streaming, ready, now, late=late):
            self._stalls.forget(worker)
            sentence = f"decode worker {_worker_name(worker)} sent nothing for {seconds:.1f} s"
            for request in self._table.of_worker(worker):
                if self.lifecycle.can_leave(request):
                    request.left_worker = worker.decode(errors="replace")
                    error = BatonError(Code.STREAM_INTERRUPTED, sentence)
                    actions += self.lifecycle.interrupt(request, error, Notify.BOTH, now)
        return actions


def _worker_name(worker: bytes) -> str:
    """As a log or an error shows it."""
    return name_of(worker.decode(errors="replace"))

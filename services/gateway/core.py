"""What a gateway decides: which requests it holds, what the router and the workers are told of
them.

Sans-IO. A request is in the table from `Opened` until its answer is complete, failed or unwanted,
and leaves it exactly once; what happens to one on its way is in `requests.py`. The token path is
`_stepped`; everything else happens a few times per request.

A request whose worker is lost goes on as a new attempt (`recovery.py`), held as new work is until
it can be submitted; the client sees a pause.

While no router answers, new work is held for `router_wait_ms` and what was submitted but not
placed goes back to being held; after a router's welcome it is submitted again, and so is what was
placed and has not spoken yet, for its order may have died with the router; what stays silent for
`router_wait_ms` too, for its tokens may have gone with a connection. The router takes it as the
same request; should it yet run twice, the worker that is not listened to is told to stop. Tokens of
a request that this gateway does not know are answered with an Abort, so that a worker cannot go on
for nobody; those just ended are only dropped, for their Abort is under way.
"""

from __future__ import annotations

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages import (
    Abort,
    Delta,
    Failed,
    Fleet,
    Live,
    Placed,
    Refused,
)
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
from services.gateway.refusals import (
    RETRY_SOON_MS,
    draining,
    known_code,
    unreachable,
    with_last_known,
)
from services.gateway.requests import Requests
from services.gateway.stalls import Stalls
from services.gateway.streams.journal import Seen
from services.gateway.streams.verdict import SPOKE, Verdict
from services.gateway.tally import KEYS_MAX


class Core:
    """The table of live requests is bounded by `max_streams`."""

    def __init__(self, limits: GatewayConfig, keys_max: int = KEYS_MAX) -> None:
        self.requests = Requests(limits, keys_max)
        self._table = self.requests.table
        self._router_wait = limits.router_wait_ms / 1000
        self._stalls = Stalls()

    @property
    def counts(self) -> Counts:
        return self.requests.counts

    @property
    def fleet(self) -> Fleet | None:
        return self.requests.fleet

    @property
    def router_up(self) -> bool:
        return self.requests.router_up

    @property
    def draining(self) -> bool:
        return self.requests.draining

    @property
    def active(self) -> int:
        return len(self._table)

    def busy_workers(self) -> list[bytes]:
        """Those that stream something now."""
        return self._table.busy_workers()

    def live(self) -> Live:
        """What a router is told after its welcome."""
        return self._table.live()

    def handle(self, event: Event, now: float) -> list[Action]:
        """The sole mutator. `now`: seconds, monotonic."""
        self.requests.moment.now = now
        actions = self._react(event, now)
        if self.requests.broken:
            actions += self.requests.go_on(now)
        return actions

    def _react(self, event: Event, now: float) -> list[Action]:
        match event:
            case Stepped():
                return self._stepped(event, now)
            case Opened():
                return self.requests.opened(event, now)
            case Closed():
                return self.requests.closed(event)
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
        assert not self.requests.broken

    # ------------------------------------------------------------ tokens

    def _stepped(self, event: Stepped, now: float) -> list[Action]:
        actions: list[Action] = []
        self._stalls.heard(event.worker, now)
        entries, worker, itl = self._table.entries, event.worker, self.requests.tally.itl
        for delta in event.deltas:
            entry = entries.get(delta.request_id)
            if entry is None:
                actions += self._unknown(worker, delta)
                continue
            if entry.worker != worker and not self._adopt(entry, worker, delta):
                actions += self._stray(worker, delta)
                continue
            if entry.state is not State.STREAMING and delta.token_ids:
                entry.call.timing.spoke(now)
            verdict = entry.stream.push(delta)
            if verdict is Verdict.DROPPED:
                self.counts.stale += 1
                continue
            if verdict in SPOKE and delta.token_ids:
                if entry.state is not State.STREAMING:
                    entry.cached_tokens = entry.cached_tokens or delta.cached_tokens
                    entry.move(State.STREAMING)
                gap = entry.legs.token()
                if gap:
                    itl.observe(gap)
            if verdict is not Verdict.RUNNING:
                actions += self._last(entry, verdict)
        return actions

    def _adopt(self, entry: Entry, worker: bytes, delta: Delta) -> bool:
        """Tokens may overtake `Placed`, which comes by another way, but not their own Submit."""
        next_ = entry.stream.journal.place(delta.attempt, delta.index) is Seen.NEXT
        asked = entry.sent == entry.attempt
        if (entry.worker and entry.state not in WAITING) or not next_ or not asked:
            return False
        self._table.assign(entry, worker)
        return True

    def _stray(self, worker: bytes, delta: Delta) -> list[Action]:
        """Of a live request, but not from where it runs: it was moved, or placed twice."""
        self.counts.stale += 1
        if delta.finish_reason or delta.error:
            return []
        reason = "this request runs elsewhere"
        abort = Abort(request_id=delta.request_id, attempt=delta.attempt, reason=reason)
        return [ToWorker(worker, abort)]

    def _last(self, entry: Entry, verdict: Verdict) -> list[Action]:
        if verdict is Verdict.FINISHED:
            self.counts.ended += 1
            return self.requests.leave(entry, State.ENDED, "", tell_worker=False, tell_router=False)
        if verdict is Verdict.STOPPED:
            self.counts.ended += 1
            return self.requests.leave(
                entry, State.ENDED, "stop string", tell_worker=True, tell_router=True
            )
        error = entry.stream.error or BatonError(Code.INTERNAL, "the stream failed")
        broken = verdict is Verdict.BROKEN
        return self.requests.break_off(entry, error, tell_worker=broken, tell_router=broken)

    def _unknown(self, worker: bytes, delta: Delta) -> list[Action]:
        self.counts.unknown += 1
        aborted = self._table.recent.get(delta.request_id) is False
        if aborted or delta.finish_reason or delta.error:
            return []
        reason = "unknown to this gateway"
        abort = Abort(request_id=delta.request_id, attempt=delta.attempt, reason=reason)
        return [ToWorker(worker, abort)]

    # ------------------------------------------------------------ router

    def _from_router(self, event: FromRouter, now: float) -> list[Action]:
        match event.message:
            case Placed() as placed:
                self._placed(placed, now)
            case Refused() as refused if refused.request_id:
                return self._refused(refused, now)
            case Failed() as failed:
                return self._failed(failed, now)
            case Fleet() as fleet:
                return self._fleet_changed(fleet)
            case _:
                pass
        return []

    def _placed(self, placed: Placed, now: float) -> None:
        entry = self._table.current(placed.request_id, placed.attempt)
        if entry is None or entry.state not in WAITING:
            return
        if entry.state is State.HELD:
            entry.move(State.SUBMITTED)
        entry.move(State.PLACED)
        entry.call.timing.placed(now)
        entry.hold_until, entry.left = now + self._router_wait, ""
        self._table.assign(entry, f"{placed.decode}|{placed.decode_incarnation}".encode())

    def _refused(self, refused: Refused, now: float) -> list[Action]:
        entry = self._table.current(refused.request_id, refused.attempt)
        if entry is None or entry.state not in WAITING:
            return []
        error = BatonError(
            known_code(refused.code), refused.message, retry_after_ms=refused.retry_after_ms or None
        )
        if entry.attempt > 1 and error.face.retryable and now < entry.hold_until:
            if entry.state is not State.HELD:
                entry.move(State.HELD)
            entry.retry_at = now + max(refused.retry_after_ms, RETRY_SOON_MS) / 1000
            return []
        emitted = len(entry.stream.journal.emitted)
        ended = recovery.interrupted(error, emitted, "")
        return self.requests.fail(entry, ended, tell_worker=True, tell_router=False)

    def _failed(self, failed: Failed, now: float) -> list[Action]:
        entry = self._table.current(failed.request_id, failed.attempt)
        if entry is None:
            return []
        if (
            failed.code == Code.NO_CAPACITY
            and entry.state is State.PLACED
            and entry.attempt < recovery.PLACEMENTS_MAX
            and self.router_up
        ):
            self._table.disown(entry)
            entry.stream.journal.next_attempt()
            return [self.requests.submit(entry, now)]
        error = BatonError(known_code(failed.code), failed.message)
        return self.requests.break_off(entry, error, tell_worker=True, tell_router=False)

    def _fleet_changed(self, fleet: Fleet) -> list[Action]:
        was, self.requests.fleet = self.fleet, fleet
        if was is not None and not fleet.max_model_len:
            self.requests.fleet = with_last_known(fleet, was)
        if was is not None and was.ready == fleet.ready:
            return []
        state = "can serve" if fleet.ready else f"cannot serve: {fleet.reason or 'not ready'}"
        return [Note("fleet.changed", f"the fleet {state}")]

    def _router_came(self, now: float) -> list[Action]:
        self.requests.router_up = True
        actions: list[Action] = [ToRouter(cancel) for cancel in self.requests.owed]
        self.requests.owed.clear()
        silent = [entry for entry in self._table if entry.state is State.PLACED]
        again = [self.requests.submit(entry, now) for entry in silent]
        return actions + again + self._submit_held(now)

    def _submit_held(self, now: float) -> list[Action]:
        due = [e for e in self._table if e.state is State.HELD and now >= e.retry_at]
        return [self.requests.submit(entry, now) for entry in due]

    def _router_went(self, now: float) -> list[Action]:
        if not self.router_up:
            return []
        self.requests.router_up = False
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
        self._stalls.forget(event.worker)
        if isinstance(event, WorkerGone):
            for entry in entries:
                if entry.state in WAITING:
                    self._table.disown(entry)
            lost = [entry for entry in entries if entry.worker]
            return self._lose(lost, event.worker, event.reason, tell_worker=False)
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
            actions += self.requests.break_off(
                entry, error, tell_worker=tell_worker, tell_router=True
            )
        return actions

    def _time_passed(self, event: Tick | DrainStarted | DrainExpired, now: float) -> list[Action]:
        match event:
            case Tick():
                actions = self._expire_held(now)
                again = self._ask_again(now) + self._submit_held(now) if self.router_up else []
                return actions + again + self._leave_silent(now)
            case DrainStarted():
                self.requests.draining = True
                return []
            case DrainExpired():
                return self._expire_drain()

    def _leave_silent(self, now: float) -> list[Action]:
        """What can go on elsewhere leaves a worker that has stopped speaking; the rest waits."""
        ready = self.fleet.decode_ready if self.fleet is not None else 0
        actions: list[Action] = []
        for worker, seconds in self._stalls.silent(self._table.streaming_workers(), ready, now):
            self._stalls.forget(worker)
            name = worker.split(b"|", 1)[0].decode(errors="replace")
            sentence = f"decode worker {name} said nothing for {seconds:.1f} s"
            for entry in self._table.of_worker(worker):
                if self.requests.can_move(entry):
                    entry.left = worker.decode(errors="replace")
                    error = BatonError(Code.STREAM_INTERRUPTED, sentence)
                    actions += self.requests.break_off(
                        entry, error, tell_worker=True, tell_router=True
                    )
        return actions

    def _ask_again(self, now: float) -> list[Action]:
        silent = self._table.silent(now)
        for entry in silent:
            entry.hold_until = now + self._router_wait
        return [self.requests.submission(entry, now) for entry in silent]

    def _expire_held(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for entry in self._table:
            if entry.state is not State.HELD:
                continue
            if entry.deadline and now >= entry.deadline:
                sentence = "the request's deadline passed before it could be placed"
                late = BatonError(Code.DEADLINE_EXCEEDED, sentence)
                actions += self.requests.fail(entry, late, tell_worker=False, tell_router=True)
            elif now >= entry.hold_until:
                late = recovery.interrupted(unreachable(), len(entry.stream.journal.emitted), "")
                actions += self.requests.fail(entry, late, tell_worker=False, tell_router=True)
        return actions

    def _expire_drain(self) -> list[Action]:
        actions: list[Action] = []
        for entry in self._table:
            actions += self.requests.fail(entry, draining(), tell_worker=True, tell_router=True)
        return actions

"""The gateway's live requests by id and by worker, and the ids of those that have just ended."""

from __future__ import annotations

from collections.abc import Iterator

from common.messages import HOLDING_MAX, Live
from services.gateway.requests.live_index import LiveIndex
from services.gateway.requests.request import WAITING, LiveRequest, State

RECENT_MAX = 4_096
ABORT_SECONDS = 1.0


class RequestTable:
    """At most `limit` live requests; the core refuses more. `cell`: whose they are; `index`: of all
    cells, where there are several."""

    def __init__(self, limit: int, cell: str = "", index: LiveIndex | None = None) -> None:
        self.limit = limit
        self._cell = cell
        self._index = LiveIndex() if index is None else index
        self.requests: dict[str, LiveRequest] = {}
        #: The latest `RECENT_MAX` requests that ended, each with the instant until which its worker
        #: may not have heard of that; 0 where another worker may run it that nobody tells.
        self.recent: dict[str, float] = {}
        self._of_worker: dict[bytes, dict[str, LiveRequest]] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Over a copy: requests may leave meanwhile."""
        return iter(list(self.requests.values()))

    @property
    def full(self) -> bool:
        return len(self.requests) >= self.limit

    def counts(self, model: str) -> tuple[int, int]:
        """The requests for this model, and how many of them have no worker named."""
        states = [r.state for r in self.requests.values() if r.spec.model == model]
        return len(states), sum(state in WAITING for state in states)

    def current(self, request_id: str, attempt: int) -> LiveRequest | None:
        """None for an attempt that is not the current one."""
        request = self.requests.get(request_id)
        return request if request is not None and request.attempt == attempt else None

    def of_worker(self, worker: bytes) -> list[LiveRequest]:
        """The requests that are assigned to it."""
        return list(self._of_worker.get(worker, {}).values())

    def is_busy(self, worker: bytes) -> bool:
        """Whether requests are assigned to it."""
        return worker in self._of_worker

    def busy_workers(self) -> list[bytes]:
        """The workers to which requests are assigned."""
        return list(self._of_worker)

    def streaming_workers(self) -> set[bytes]:
        """The workers that have sent tokens of a live request's current attempt."""
        return {r.worker for r in self.requests.values() if r.state is State.STREAMING}

    def waiting_long(self, now: float, seconds: float) -> list[LiveRequest]:
        """The requests that are held, and those that got no token for so long."""
        since, held = now - seconds, State.HELD
        return [
            request
            for request in self.requests.values()
            if request.state is held
            or (request.opened <= since and request.timer.last_token <= since)
        ]

    def to_submit(self, now: float) -> list[LiveRequest]:
        """The requests that are held and need wait no longer, if there is a router."""
        held = State.HELD
        return [r for r in self.requests.values() if r.state is held and now >= r.retry_at]

    def to_ask_again(self, now: float) -> list[LiveRequest]:
        """The requests without a token of their current attempt that are due at the router."""
        asked = (State.SUBMITTED, State.PLACED)
        return [r for r in self.requests.values() if r.state in asked and now >= r.ask_at]

    def add(self, request: LiveRequest) -> None:
        self.requests[request.spec.request_id] = request
        self._index.add(request, self._cell)

    def live(self) -> Live:
        """What a router must know of this gateway after its welcome."""
        attempts = [(request_id, request.attempt) for request_id, request in self.requests.items()]
        return Live(attempts=tuple(attempts[:HOLDING_MAX]), complete=len(attempts) <= HOLDING_MAX)

    def assign(self, request: LiveRequest, worker: bytes) -> None:
        """From now on only tokens from this worker are taken."""
        self.unassign(request)
        request.worker, request.left_worker, request.moved_from = worker, "", ""
        self._of_worker.setdefault(worker, {})[request.spec.request_id] = request

    def unassign(self, request: LiveRequest) -> bytes:
        """Returns the worker that it was assigned to; empty for none."""
        worker, request.worker = request.worker, b""
        if worker:
            assigned = self._of_worker[worker]
            del assigned[request.spec.request_id]
            if not assigned:
                del self._of_worker[worker]
        return worker

    def remove(self, request: LiveRequest, now: float) -> bytes:
        """The request has ended. Returns the worker that it was assigned to; empty for none."""
        request_id = request.spec.request_id
        self._delete(request)
        again = request.resubmitted or request.state is State.FAILED
        self._ended(request_id, 0.0 if again else now + ABORT_SECONDS)
        return self.unassign(request)

    def give_up(self, request: LiveRequest) -> bytes:
        """It goes on elsewhere: a worker that still runs it gets an Abort. Returns the worker that
        it was assigned to; empty for none."""
        self._delete(request)
        self._ended(request.spec.request_id, 0.0)
        return self.unassign(request)

    def models(self) -> set[str]:
        """What live requests ask for."""
        return {request.spec.model for request in self.requests.values()}

    def _delete(self, request: LiveRequest) -> None:
        del self.requests[request.spec.request_id]
        self._index.remove(request)

    def _ended(self, request_id: str, told_until: float) -> None:
        self.recent[request_id] = told_until
        if len(self.recent) > RECENT_MAX:
            del self.recent[next(iter(self.recent))]

    def check_invariants(self, *, router_up: bool) -> None:
        """Raises AssertionError."""
        assert len(self.requests) <= self.limit
        assert len(self.recent) <= RECENT_MAX
        assigned = 0
        for request_id, request in self.requests.items():
            assert request.spec.request_id == request_id
            assert self._index.cell_of(request_id) == self._cell
            if request.worker:
                assert self._of_worker[request.worker][request_id] is request
                assigned += 1
            else:
                assert request.state is not State.PLACED
                assert request.state is not State.STREAMING
            assert request.state is not State.SUBMITTED or router_up
        assert assigned == sum(map(len, self._of_worker.values()))

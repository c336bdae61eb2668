"""The gateway's live requests: by id, by the worker that streams them, and those just ended."""

from __future__ import annotations

from collections.abc import Iterator

from common.messages import HOLDING_MAX, Live
from services.gateway.entry import Entry, State

RECENT_MAX = 4_096


class Table:
    """Bounded by `limit`; `recent` by `RECENT_MAX`, the oldest forgotten first. Of those it says
    whether a worker may yet go on with it unknowingly."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.entries: dict[str, Entry] = {}
        self.recent: dict[str, bool] = {}
        self._of_worker: dict[bytes, dict[str, Entry]] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        """A copy: entries may leave meanwhile."""
        return iter(list(self.entries.values()))

    @property
    def full(self) -> bool:
        return len(self.entries) >= self.limit

    def current(self, request_id: str, attempt: int) -> Entry | None:
        entry = self.entries.get(request_id)
        return entry if entry is not None and entry.attempt == attempt else None

    def of_worker(self, worker: bytes) -> list[Entry]:
        return list(self._of_worker.get(worker, {}).values())

    def busy_workers(self) -> list[bytes]:
        """Those that stream something now."""
        return list(self._of_worker)

    def streaming_workers(self) -> set[bytes]:
        """Those that have spoken of a stream that is not over."""
        return {e.worker for e in self.entries.values() if e.state is State.STREAMING}

    def silent(self, now: float) -> list[Entry]:
        """Placed, and not heard of by `hold_until`."""
        entries = self.entries.values()
        return [e for e in entries if e.state is State.PLACED and now >= e.hold_until]

    def add(self, entry: Entry) -> None:
        self.entries[entry.call.request_id] = entry

    def live(self) -> Live:
        """What a router is told after its welcome."""
        tries = [(request_id, entry.attempt) for request_id, entry in self.entries.items()]
        return Live(tries=tuple(tries[:HOLDING_MAX]), complete=len(tries) <= HOLDING_MAX)

    def assign(self, entry: Entry, worker: bytes) -> None:
        """From here on its tokens are taken from this worker only."""
        self.disown(entry)
        entry.worker = worker
        self._of_worker.setdefault(worker, {})[entry.call.request_id] = entry

    def disown(self, entry: Entry) -> bytes:
        """It is no worker's any more; returns whose it was, empty for nobody's."""
        worker, entry.worker = entry.worker, b""
        if worker:
            owned = self._of_worker[worker]
            del owned[entry.call.request_id]
            if not owned:
                del self._of_worker[worker]
        return worker

    def remove(self, entry: Entry) -> bytes:
        """It has ended; returns whose it was."""
        request_id = entry.call.request_id
        del self.entries[request_id]
        self.recent[request_id] = entry.resubmitted or entry.state is State.FAILED
        if len(self.recent) > RECENT_MAX:
            del self.recent[next(iter(self.recent))]
        return self.disown(entry)

    def check_invariants(self, *, router_up: bool) -> None:
        """Raises AssertionError."""
        assert len(self.entries) <= self.limit
        assert len(self.recent) <= RECENT_MAX
        for request_id, entry in self.entries.items():
            assert entry.call.request_id == request_id
            assert entry.worker or entry.state not in (State.PLACED, State.STREAMING)
            if entry.worker:
                assert self._of_worker[entry.worker][request_id] is entry
            assert entry.state is not State.SUBMITTED or router_up
        owned = sum(len(entries) for entries in self._of_worker.values())
        assert owned == sum(1 for entry in self.entries.values() if entry.worker)

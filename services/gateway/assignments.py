"""Which decode worker a request's tokens are taken from."""

from __future__ import annotations

from services.gateway.entry import Entry


class Assignments:
    """Both ways round: `Entry.worker`, and each worker's entries by request id."""

    def __init__(self) -> None:
        self._of_worker: dict[bytes, dict[str, Entry]] = {}

    def busy(self) -> list[bytes]:
        """Workers that have a request."""
        return list(self._of_worker)

    def of(self, worker: bytes) -> list[Entry]:
        return list(self._of_worker.get(worker, {}).values())

    def assign(self, entry: Entry, worker: bytes) -> None:
        """From here on, and from nowhere else."""
        self.release(entry)
        entry.worker = worker
        self._of_worker.setdefault(worker, {})[entry.call.request_id] = entry

    def release(self, entry: Entry) -> bytes:
        """The worker it had, or empty. Idempotent."""
        worker, entry.worker = entry.worker, b""
        if worker:
            owned = self._of_worker[worker]
            del owned[entry.call.request_id]
            if not owned:
                del self._of_worker[worker]
        return worker

    def check_invariants(self, entries: dict[str, Entry]) -> None:
        for worker, owned in self._of_worker.items():
            assert owned, f"{worker!r} is kept without a request"
            for request_id, entry in owned.items():
                assert entry.worker == worker
                assert entries[request_id] is entry
        assert sum(map(len, self._of_worker.values())) == sum(
            bool(e.worker) for e in entries.values()
        )

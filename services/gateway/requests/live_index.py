"""Which cell has each live request of a gateway, how many of its key are there, and which cells a
tick is for."""

from __future__ import annotations

from services.gateway.requests.request import LiveRequest
from services.gateway.requests.stalls import STALL_SECONDS_MIN


class LiveIndex:
    """One for all cells. Its rows are bounded by the requests that may live at once."""

    def __init__(self) -> None:
        #: The name of the cell, empty where there are no cells, and the request, by its id.
        self._requests: dict[str, tuple[str, LiveRequest]] = {}
        #: How many live requests a key has in a cell, by cell and key id; never 0.
        self._of_key: dict[tuple[str, str], int] = {}
        #: The cells that requests have left since `take_due`.
        self._left: set[str] = set()

    def __len__(self) -> int:
        """The number of live requests."""
        return len(self._requests)

    def add(self, request: LiveRequest, cell: str) -> None:
        self._requests[request.spec.request_id] = cell, request
        row = cell, request.caller.key_id
        self._of_key[row] = self._of_key.get(row, 0) + 1

    def remove(self, request: LiveRequest) -> None:
        cell, _ = self._requests.pop(request.spec.request_id)
        self._left.add(cell)
        row = cell, request.caller.key_id
        left = self._of_key[row] - 1
        if left:
            self._of_key[row] = left
        else:
            del self._of_key[row]

    def cell_of(self, request_id: str) -> str | None:
        """None: no such request lives."""
        row = self._requests.get(request_id)
        return None if row is None else row[0]

    def of_key(self, cell: str, key_id: str) -> int:
        """Live requests of this key in this cell; 0 for no key."""
        return self._of_key.get((cell, key_id), 0) if key_id else 0

    def take_due(self, now: float, token_wait: float, *, late: bool) -> set[str]:
        """The cells in which a tick may do something. `token_wait`: as in `LiveRequest.is_due`.
        `late`: as in `Tick`, which then is for all cells that hold requests."""
        due, self._left = self._left, set()
        stall_wait = min(STALL_SECONDS_MIN, token_wait)
        for cell, request in self._requests.values():
            if late or request.is_due(now, token_wait, stall_wait):
                due.add(cell)
        return due

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert sum(self._of_key.values()) == len(self._requests)
        assert all(self._of_key.values())

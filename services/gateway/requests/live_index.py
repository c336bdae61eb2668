"""Which cell has each live request of a gateway, and how many of its key are there."""

from __future__ import annotations


class LiveIndex:
    """One for all cells. Its rows are bounded by the requests that may live at once."""

    def __init__(self) -> None:
        #: The name of the cell, by request id; empty where there are no cells.
        self.cells: dict[str, str] = {}
        #: How many live requests a key has in a cell, by cell and key id; never 0.
        self._of_key: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        """The number of live requests."""
        return len(self.cells)

    def add(self, request_id: str, cell: str, key_id: str) -> None:
        self.cells[request_id] = cell
        row = cell, key_id
        self._of_key[row] = self._of_key.get(row, 0) + 1

    def remove(self, request_id: str, key_id: str) -> None:
        row = self.cells.pop(request_id), key_id
        left = self._of_key[row] - 1
        if left:
            self._of_key[row] = left
        else:
            del self._of_key[row]

    def of_key(self, cell: str, key_id: str) -> int:
        """Live requests of this key in this cell; 0 for no key."""
        return self._of_key.get((cell, key_id), 0) if key_id else 0

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert sum(self._of_key.values()) == len(self.cells)
        assert all(self._of_key.values())

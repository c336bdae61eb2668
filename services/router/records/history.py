"""Attempts that are over: what `explain` shows, and what makes late messages and repeated Submits
recognizable. The table is bounded; the oldest are forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from common.identity import AttemptKey
from services.router.records.attempt import Attempt


class History:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: By key, in the order in which they ended.
        self._attempts: OrderedDict[AttemptKey, Attempt] = OrderedDict()
        #: The highest number among them, by request.
        self._latest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts.values())

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self._attempts.move_to_end(attempt.key)
        self._latest[attempt.request_id] = max(
            attempt.number, self._latest.get(attempt.request_id, 0)
        )
        if len(self._attempts) > self._limit:
            (request_id, number), _ = self._attempts.popitem(last=False)
            if self._latest.get(request_id) == number:
                del self._latest[request_id]

    def find(self, key: AttemptKey) -> Attempt | None:
        return self._attempts.get(key)

    def latest(self, request_id: str) -> Attempt | None:
        """The attempt of this request with the highest number."""
        number = self._latest.get(request_id)
        return None if number is None else self._attempts.get((request_id, number))

    def check_invariants(self) -> None:
        assert len(self._attempts) <= self._limit
        assert len(self._latest) <= len(self._attempts)

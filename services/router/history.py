"""Tries that are over, bounded, newest kept: what `explain` tells and what makes late messages and
repeated Submits recognizable."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from services.router.records import Key, Try


class History:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tries: OrderedDict[Key, Try] = OrderedDict()
        self._latest: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tries)

    def __iter__(self) -> Iterator[Try]:
        return iter(self._tries.values())

    def add(self, each: Try) -> None:
        self._tries[each.key] = each
        self._tries.move_to_end(each.key)
        self._latest[each.request_id] = max(each.attempt, self._latest.get(each.request_id, 0))
        if len(self._tries) > self._limit:
            (request_id, attempt), _ = self._tries.popitem(last=False)
            if self._latest.get(request_id) == attempt:
                del self._latest[request_id]

    def find(self, key: Key) -> Try | None:
        return self._tries.get(key)

    def latest(self, request_id: str) -> Try | None:
        """The highest attempt of this request that is over."""
        attempt = self._latest.get(request_id)
        return None if attempt is None else self._tries.get((request_id, attempt))

    def check_invariants(self) -> None:
        assert len(self._tries) <= self._limit
        assert len(self._latest) <= len(self._tries)

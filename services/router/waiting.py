"""The one queue: first in, first out, bounded by count and bytes.

A request that does not fit now lets up to `LOOK_PAST - 1` behind it be tried, so that one large
prompt does not block small ones; a request passed by `PASSED_MAX` times is passed no more, so that
it is not starved either. With `count_max` 0 one request may be in it while it is being placed, no
longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from services.router.records import Key, Try

LOOK_PAST = 16
PASSED_MAX = 64


class Waiting:
    """`bytes_held`: the sum of the bodies in it."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._tries: OrderedDict[Key, Try] = OrderedDict()
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._tries)

    def __iter__(self) -> Iterator[Try]:
        return iter(self._tries.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._tries

    def has_room(self, body_bytes: int) -> bool:
        room = self.bytes_held + body_bytes <= self._bytes_max
        return room and len(self._tries) < max(1, self._count_max)

    def append(self, each: Try) -> None:
        self._tries[each.key] = each
        self.bytes_held += len(each.body)

    def remove(self, each: Try) -> None:
        del self._tries[each.key]
        self.bytes_held -= len(each.body)

    def head(self) -> Try:
        return next(iter(self._tries.values()))

    def window(self) -> Iterator[Try]:
        """Those that may be tried now, in order. The queue must not change meanwhile."""
        for each in islice(self._tries.values(), LOOK_PAST):
            yield each
            if each.passed_by >= PASSED_MAX:
                return

    def check_invariants(self) -> None:
        assert len(self._tries) <= self._count_max
        assert self.bytes_held <= self._bytes_max
        assert self.bytes_held == sum(len(each.body) for each in self._tries.values())

"""Blocks that the engine gets from the store before the request that needs them is here.

Theory of operation: a stream is to go on here, and its blocks come while it still runs elsewhere.
The KV thread names those that have come (`StoreTable.ahead`). Some of them at a time get blocks of
the engine, which the KV thread fills as for any load; then they are in the engine's prefix cache,
where the stream finds them. So its pause does not contain the copy. They are held only while they
are filled, and after that the engine may take them as all that it caches, least recently used
first. While they are held a step may want blocks, so a load takes a part of the free ones at most.
What finds no room, and what is not there in time, the stream loads itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from common.engine.connector.metadata import AHEAD, StoreLoad
from common.kv.store.table import BlockCopy, BlockName, StoreTable

LOAD_BYTES = 8 << 20
"""Of one load at most, or one block: a load that somebody waits for comes after it."""
FREE_PARTS = 4
"""One of so many parts of the free blocks may be taken."""


class Pool(Protocol):
    """What is used of `EnginePool`."""

    @property
    def free(self) -> int: ...

    def __contains__(self, name: object) -> bool: ...

    def take(self, count: int) -> list[int]: ...

    def give_back(self, held: Mapping[int, BlockName | None]) -> None: ...


class LoadsAhead:
    """It runs on the engine's thread."""

    def __init__(
        self, table: StoreTable, pool: Pool, block_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._table = table
        self._pool = pool
        self._blocks_max = max(1, LOAD_BYTES // block_bytes)
        self._clock = clock
        #: What is being loaded: to which block of the engine, out of which slot.
        self._loading: dict[int, BlockCopy] = {}

    @property
    def pending(self) -> bool:
        """Whether steps are needed to begin or to end a load."""
        return bool(self._loading or self._table.ahead)

    def begin(self) -> StoreLoad | None:
        """The next load, if it may begin. Its blocks are overwritten by the step."""
        if self._loading or not self._table.ahead:
            return None
        room = min(self._blocks_max, self._pool.free // FREE_PARTS)
        wanted: dict[int, BlockName] = {}
        while self._table.ahead and len(wanted) < room:
            name = self._table.ahead.popleft()
            if name not in self._pool and name not in wanted.values():
                wanted |= dict.fromkeys(self._table.take([name], self._clock()), name)
        if not room:
            self._table.ahead.clear()
        if not wanted:
            return None
        given = self._pool.take(len(wanted))
        copies = [
            BlockCopy(slot, block_id, name)
            for (slot, name), block_id in zip(wanted.items(), given, strict=True)
        ]
        self._loading = {copy.block_id: copy for copy in copies}
        return StoreLoad(AHEAD, copies)

    def ended(self, loaded: Collection[str], failed: Collection[str]) -> None:
        """The requests whose loads have ended, of which `failed` are a part."""
        if AHEAD not in loaded:
            return
        loading, self._loading = self._loading, {}
        self._table.end_read([copy.slot for copy in loading.values()], self._clock())
        whole = AHEAD not in failed
        self._table.counts.ahead += len(loading) if whole else 0
        self._pool.give_back(
            {block_id: copy.name if whole else None for block_id, copy in loading.items()}
        )

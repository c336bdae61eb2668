"""What an operator orders of blocks of the store, on the KV thread.

Theory of operation: pinned blocks are kept in memory. What only the disk has is brought to memory
for that. Dropped blocks are found no more in either tier. The memory is dealt with at once, because
its table has a lock; whoever owns the disk learns of it with the results of the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from common.kv.store.promotions import Promotions
from common.kv.store.slots import HASH_END_BYTES
from common.kv.store.table import BlockName, StoreTable
from common.messages import StoreAction
from common.telemetry.log import Logger


class StoreOrders:
    """`below`: what the store has on a disk that the KV thread may read; None without one."""

    def __init__(
        self,
        table: StoreTable,
        below: Promotions | None,
        on_dropped: Callable[[list[bytes]], None],
        clock: Callable[[], float],
    ) -> None:
        """`on_dropped` gets the ends of the hashes of what is to be dropped from the disk, too."""
        self._table = table
        self._below = below
        self._on_dropped = on_dropped
        self._clock = clock
        self._log: Logger = structlog.get_logger("baton")

    def carry_out(self, action: StoreAction, joined: bytes) -> None:
        """`joined`: as in `KvOrder.ends`."""
        step = HASH_END_BYTES
        ends = [joined[at : at + step] for at in range(0, len(joined), step)]
        match action:
            case "pin":
                self._pin(self._named(ends))
            case "unpin":
                self._table.unpin(self._table.ending(ends), self._clock())
            case "drop":
                self._table.drop(self._table.ending(ends))
                self._on_dropped(ends)

    def _named(self, ends: Sequence[bytes]) -> list[BlockName]:
        here = {name.block_hash[-HASH_END_BYTES:]: name for name in self._table.ending(ends)}
        if self._below is not None:
            here = self._below.ending(ends) | here
        return [here[end] for end in ends if end in here]

    def _pin(self, names: Sequence[BlockName]) -> None:
        def pin() -> None:
            refused = self._table.pin(names)
            if refused:
                sentence = f"half of its memory is pinned; {refused} blocks more are not"
                self._log.warning("store.pins_full", sentence=sentence)

        if self._below is None or not self._below.begin(names, pin):
            pin()

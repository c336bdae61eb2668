"""What an operator orders of blocks of a store, as its KV thread carries it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from common.kv.offers.orders import StoreOrders
from common.kv.store.table import BlockName, StoreTable


def name(number: int) -> BlockName:
    return BlockName(0, number.to_bytes(32))


def ends(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8) for number in numbers)


class Below:
    """A disk that has these blocks, and gives them when the test says so."""

    def __init__(self, table: StoreTable, *numbers: int) -> None:
        self.table = table
        self.on_disk = {number.to_bytes(8): name(number) for number in numbers}
        self.come: list[Callable[[], None]] = []

    def ending(self, wanted: Sequence[bytes]) -> dict[bytes, BlockName]:
        return {end: self.on_disk[end] for end in wanted if end in self.on_disk}

    def begin(self, names: Sequence[BlockName], then: Callable[[], None]) -> bool:
        lacking = [name for name in names if name not in self.table]

        def come() -> None:
            hold(self.table, *(int.from_bytes(name.block_hash) for name in lacking))
            then()

        if lacking:
            self.come.append(come)
        return bool(lacking)


def hold(table: StoreTable, *numbers: int) -> None:
    for number in numbers:
        slot = table.begin_write(name(number))
        assert slot is not None
        table.end_write(slot, 0.0, whole=True)


class Rig:
    def __init__(self, *on_disk: int) -> None:
        self.table, self.now = StoreTable(8, ttl_s=10.0), 0.0
        self.below = Below(self.table, *on_disk)
        self.dropped: list[list[bytes]] = []
        below = self.below if on_disk else None
        self.orders = StoreOrders(
            self.table,
            below,  # type: ignore[arg-type]
            self.dropped.append,
            lambda: self.now,
        )

    def held(self) -> list[int]:
        return [number for number in range(1, 9) if name(number) in self.table]


def test_pinned_blocks_stay_until_they_are_unpinned() -> None:
    rig = Rig()
    hold(rig.table, 1, 2, 3)
    rig.orders.carry_out("pin", ends(1, 9, 2))
    rig.table.expire(50.0)
    assert (rig.held(), rig.table.counts.pinned) == ([1, 2], 2)
    rig.now = 50.0
    rig.orders.carry_out("unpin", ends(1))
    rig.table.expire(59.0)
    assert rig.held() == [1, 2]
    rig.table.expire(60.0)
    assert rig.held() == [2]


def test_what_only_the_disk_has_is_pinned_once_memory_has_it() -> None:
    rig = Rig(1, 2)
    hold(rig.table, 1)
    rig.orders.carry_out("pin", ends(1, 2))
    assert rig.table.counts.pinned == 0
    (come,) = rig.below.come
    come()
    assert (rig.held(), rig.table.counts.pinned) == ([1, 2], 2)
    rig.orders.carry_out("pin", ends(1, 2))
    assert len(rig.below.come) == 1, "memory has all of it"


def test_dropped_blocks_go_from_memory_at_once_and_the_disk_is_told() -> None:
    rig = Rig(2)
    hold(rig.table, 1, 3)
    rig.orders.carry_out("pin", ends(1))
    rig.orders.carry_out("drop", ends(1, 2))
    assert (rig.held(), rig.table.counts.pinned) == ([3], 0)
    assert rig.dropped == [[(1).to_bytes(8), (2).to_bytes(8)]]

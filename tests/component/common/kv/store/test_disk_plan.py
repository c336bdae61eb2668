"""What lies on the disks of all ranks is read on a thread of its own."""

from __future__ import annotations

from typing import cast

from common.kv.store.disk_plan import DiskIndex
from common.kv.store.record import Record
from common.kv.store.segments import Segments
from common.kv.store.table import BlockName

ENDS_S = 10.0


class Rank:
    """Segments in which these records lie, or that cannot be read."""

    def __init__(self, *texts: str, broken: bool = False) -> None:
        self._texts, self._broken = texts, broken

    def scan(self) -> list[tuple[int, Record]]:
        if self._broken:
            raise OSError("input/output error")
        names = [BlockName(0, text.encode()) for text in self._texts]
        return [(at, Record(name, b"", 0.0)) for at, name in enumerate(names)]


def found(*ranks: Rank) -> dict[int, Record] | None:
    index = DiskIndex(cast("list[Segments]", list(ranks)))
    index._thread.join(ENDS_S)
    return index()


def test_it_has_what_lies_on_the_disks_of_all_ranks() -> None:
    held = found(Rank("a", "b", "c"), Rank("a", "x", "c"))
    assert held is not None
    assert {at: record.name.block_hash for at, record in held.items()} == {0: b"a", 2: b"c"}


def test_a_disk_that_cannot_be_read_holds_nothing_and_is_not_waited_for() -> None:
    assert found(Rank("a"), Rank(broken=True)) == {}

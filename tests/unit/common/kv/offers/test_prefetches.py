"""Blocks that are brought to memory before their request comes: from where, how many, how long they
are kept, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from common.kv.messages import KvArrived, KvCopied, KvPrefetch
from common.kv.offers import prefetches
from common.kv.offers.prefetches import (
    ARRIVED_KEEP_S,
    KEEP_S,
    KEPT_PART,
    PREFETCHES_MAX,
    StorePrefetches,
)
from common.kv.store.table import BlockName
from common.messages import KvSource
from tests.unit.common.kv.offers.test_copies import DAMAGED, Taker, hashes, names

SOURCE = KvSource(name="p1", incarnation="i", fingerprint="f", kv_address="h:9", tokens=0)
SLOTS = 16
KEPT_MAX = SLOTS // KEPT_PART


class Bench(Taker):
    """A store with prefetches over the copies of the test beside this one."""

    def __init__(self, slots: int = SLOTS) -> None:
        super().__init__(slots)
        self.side = StorePrefetches(
            self.copies, 512, slots, self.counters, lambda: self.now, on_copied=self.told.append
        )
        self.side.table = self.table

    def order(self, *blocks: int, source: int = 0, request: str = "r") -> None:
        self.side.on_order(
            KvPrefetch(
                request_id=request,
                attempt=1,
                hashes=hashes(*blocks),
                names=names(*blocks),
                source=SOURCE if source else None,
                source_blocks=source,
            )
        )

    def arrive(self, request: str = "r") -> None:
        self.side.on_arrived(KvArrived(request_id=request, attempt=1))

    def read(self, *blocks: int) -> None:
        """An engine reads these blocks out of memory."""
        for slot in self.table.take([named(at) for at in blocks], self.now):
            self.side.on_read(slot)
            self.table.end_read([slot], self.now)

    def fill(self, *blocks: int) -> None:
        """The store gets these blocks of other requests."""
        for at in blocks:
            slot = self.table.begin_write(named(at))
            if slot is not None:
                self.table.end_write(slot, self.now, whole=True)

    @property
    def counted(self) -> tuple[int, int, int]:
        """Blocks that came, were used, and were wasted."""
        counts = self.counters
        return counts.prefetched, counts.prefetch_used, counts.prefetch_wasted

    def pulled(self) -> list[bytes]:
        return [spec.hashes for _, spec, _ in self.under_way.values()]

    def check(self) -> None:
        self.table.check_invariants()
        assert self.side.kept <= KEPT_MAX
        prefetched, used, wasted = self.counted
        assert prefetched == used + wasted + self.side.kept
        assert sum(slot.readers for slot in self.table._slots) == self.side.kept


def named(at: int) -> BlockName:
    return BlockName(0, hashes(at))


def test_what_a_source_has_is_pulled_kept_and_found_by_the_engine() -> None:
    bench = Bench()
    bench.order(1, 2, 3, source=3)
    assert bench.pulled() == [hashes(1, 2, 3)]
    bench.end()
    assert bench.held(1, 2, 3) == 3
    assert (bench.counted, bench.side.kept) == ((3, 0, 0), 3)
    assert bench.told == [KvCopied(hashes=hashes(1, 2, 3), names=names(1, 2, 3))]
    assert bench.counters.store_copied == 0, "nobody offered them"
    bench.arrive()
    bench.read(1, 2)
    assert bench.counted == (3, 2, 0)
    bench.read(1)
    assert bench.counted == (3, 2, 0), "a block is used once"
    bench.read(3)
    assert (len(bench.side), bench.counters.prefetch_late) == (0, 0)
    bench.check()


def test_what_is_stored_meanwhile_pushes_out_nothing_that_waits() -> None:
    bench = Bench()
    bench.order(1, 2, source=2)
    bench.end()
    bench.fill(*range(100, 140))
    assert bench.held(1, 2) == 2
    bench.check()


def test_what_nobody_reads_in_time_is_the_next_to_go() -> None:
    bench = Bench()
    bench.fill(*range(100, 114))
    bench.order(1, 2, source=2)
    bench.end()
    bench.now = KEEP_S
    bench.table.mark_used([named(at) for at in range(100, 114)], bench.now)
    bench.side.tick()
    assert (bench.counted, len(bench.side)) == ((2, 0, 2), 0)
    bench.table.check_invariants()
    bench.fill(50, 51)
    assert [named(at) in bench.table for at in (1, 2, 100, 113)] == [False, False, True, True]


def test_what_memory_has_is_not_fetched_and_counts_as_used() -> None:
    bench = Bench()
    bench.fill(1, 2, *range(100, 100 + SLOTS - 2))
    bench.order(1, 2, source=2)
    assert (bench.pulled(), len(bench.side)) == ([], 0)
    bench.fill(50)
    assert named(1) in bench.table
    assert named(100) not in bench.table


def test_without_a_source_nothing_is_kept() -> None:
    bench = Bench()
    bench.order(1, 2)
    bench.side.table = None
    bench.order(1, 2, source=2, request="other")
    assert (bench.pulled(), len(bench.side)) == ([], 0)


def test_handoffs_and_offers_go_first() -> None:
    bench = Bench()
    bench.handoffs = 1
    bench.order(1, source=1)
    assert bench.pulled() == []
    bench.handoffs = 0
    bench.offer(9, 7)
    bench.side.tick()
    assert bench.pulled() == [hashes(7)]
    bench.end()
    bench.side.tick()
    assert bench.pulled() == [hashes(1)]


def test_an_offer_that_waits_goes_before_the_next_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetches, "PART_BYTES", 512)
    bench = Bench()
    bench.order(1, 2, source=2)
    bench.handoffs = 1
    bench.offer(9, 7)
    assert bench.pulled() == [hashes(1)]
    bench.handoffs = 0
    bench.end()
    assert bench.pulled() == [hashes(7)]
    bench.end()
    bench.side.tick()
    assert bench.pulled() == [hashes(2)]


def test_of_two_requests_with_one_beginning_one_is_fetched_for() -> None:
    bench = Bench()
    bench.fill(2)
    bench.order(1, 2, 3, source=3)
    bench.order(1, 2, source=2, request="other")
    bench.end()
    assert (bench.counted, bench.side.kept) == ((2, 0, 0), 2), "one was there"
    bench.check()
    bench.read(1, 2, 3)
    bench.check()
    assert len(bench.side) == 0


def test_parts_are_small_and_one_is_under_way_of_all_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetches, "PART_BYTES", 1024)
    bench = Bench()
    bench.order(1, 2, 3, source=3)
    bench.order(8, source=1, request="other")
    for part in (hashes(1, 2), hashes(3), hashes(8)):
        assert bench.pulled() == [part]
        bench.end()
    assert (bench.pulled(), bench.counted) == ([], (4, 0, 0))
    bench.check()


def test_a_request_that_is_here_first_is_late_and_nothing_more_is_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetches, "PART_BYTES", 1024)
    bench = Bench()
    bench.order(1, 2, 3, source=3)
    bench.arrive()
    assert bench.counters.prefetch_late == 1
    bench.end()
    assert (bench.pulled(), bench.side.kept) == ([], 2)
    bench.arrive()
    assert bench.counters.prefetch_late == 1
    bench.read(1)
    bench.now = ARRIVED_KEEP_S
    bench.side.tick()
    assert (bench.counted, len(bench.side)) == ((2, 1, 1), 0)
    bench.check()


def test_a_request_that_goes_elsewhere_lets_all_go_also_what_comes_later() -> None:
    bench = Bench()
    bench.order(1, 2, source=2)
    bench.side.over(("r", 1))
    bench.side.over(("r", 1))
    bench.end()
    assert (bench.counted, bench.side.kept, len(bench.side)) == ((2, 0, 2), 0, 0)
    bench.order(5, source=1)
    bench.end()
    assert bench.side.kept == 1, "the next one is not held up"
    bench.side.over(("r", 1))
    assert bench.counted == (3, 0, 3)
    bench.check()


def test_a_part_that_fails_ends_the_prefetch_and_harms_nothing() -> None:
    bench = Bench()
    bench.order(1, 2, 3, source=3)
    bench.end(DAMAGED)
    assert (bench.counted, len(bench.side), bench.pulled()) == ((0, 0, 0), 0, [])
    bench.order(4, source=1, request="next")
    bench.end()
    assert bench.counted == (1, 0, 0)
    bench.check()


def test_a_source_of_another_fingerprint_gives_nothing() -> None:
    bench = Bench()
    strange = msgspec.structs.replace(SOURCE, fingerprint="other")
    order = KvPrefetch(
        request_id="r", attempt=1, hashes=hashes(1), names=names(1), source=strange, source_blocks=1
    )
    bench.side.on_order(order)
    assert (bench.pulled(), len(bench.side)) == ([], 0)


def test_what_has_no_room_waits_until_an_engine_has_read_something() -> None:
    bench = Bench()
    bench.order(*range(1, 8), source=7)
    bench.order(20, source=1, request="next")
    assert bench.pulled() == [hashes(*range(1, KEPT_MAX + 1))]
    bench.end()
    bench.side.tick()
    assert (bench.pulled(), bench.side.kept) == ([], KEPT_MAX)
    bench.arrive()
    bench.read(1)
    bench.side.tick()
    assert bench.pulled() == [hashes(20)]
    bench.end()
    bench.check()
    assert bench.counters.prefetch_skipped == 7 - KEPT_MAX


def test_the_next_request_has_the_first_room_and_a_part_comes_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefetches, "PART_BYTES", 1024)
    bench = Bench()
    bench.order(1, 2, 3, source=3)
    bench.order(11, 12, source=2, request="next")
    bench.order(21, 22, source=2, request="last")
    for _ in range(2):
        bench.end()
    assert (bench.pulled(), bench.side.kept) == ([], 3), "one block of the next may not come alone"
    bench.read(1, 2, 3)
    bench.side.tick()
    assert bench.pulled() == [hashes(11, 12)]
    bench.end()
    assert bench.pulled() == [hashes(21, 22)]
    bench.end()
    bench.check()


def test_what_memory_has_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetches, "PART_BYTES", 512)
    bench = Bench()
    bench.fill(50, 51)
    bench.order(*range(1, KEPT_MAX + 1), source=KEPT_MAX)
    for _ in range(KEPT_MAX):
        bench.end()
    bench.order(50, 51, source=2, request="next")
    assert (bench.side.kept, len(bench.side)) == (KEPT_MAX, 1)
    bench.check()


def test_what_waited_for_room_in_vain_is_counted() -> None:
    bench = Bench()
    bench.order(*range(1, KEPT_MAX + 1), source=KEPT_MAX)
    bench.end()
    bench.order(20, 21, source=2, request="late")
    bench.order(30, source=1, request="elsewhere")
    bench.arrive("late")
    counters = bench.counters
    assert (counters.prefetch_late, counters.prefetch_skipped) == (1, 2)
    bench.side.over(("elsewhere", 1))
    bench.side.over(("r", 1))
    bench.side.tick()
    assert (counters.prefetch_late, counters.prefetch_skipped) == (1, 3)
    assert (bench.pulled(), len(bench.side)) == ([], 0)
    bench.check()


def test_orders_are_bounded_and_one_that_comes_twice_changes_nothing() -> None:
    bench = Bench()
    bench.handoffs = 1
    for number in range(PREFETCHES_MAX + 1):
        bench.order(number, source=1, request=f"r{number}")
        bench.order(number + 50, source=1, request=f"r{number}")
    assert len(bench.side) == PREFETCHES_MAX
    assert bench.counters.prefetch_skipped == 2
    odd = KvPrefetch(request_id="odd", attempt=1, hashes=hashes(1, 2), names=names(1))
    bench.side.over(("r0", 1))
    bench.side.on_order(odd)
    assert len(bench.side) == PREFETCHES_MAX - 1


class Below:
    """A disk that has these blocks, and reads them when the test says so."""

    def __init__(self, bench: Bench, *blocks: int) -> None:
        self.bench, self.held = bench, blocks
        self.asked: list[tuple[list[BlockName], bool]] = []
        self.ends: list[tuple[list[int], Callable[[], None]]] = []

    def begin(
        self, names: Sequence[BlockName], then: Callable[[], None], *, ahead: bool = False
    ) -> bool:
        here = [at for at in self.held if named(at) in names]
        if here:
            self.asked.append((list(names), ahead))
            self.ends.append((here, then))
        return bool(here)

    def answer(self) -> None:
        here, then = self.ends.pop(0)
        self.bench.fill(*here)
        then()


def test_an_order_without_a_source_brings_what_the_own_disk_has() -> None:
    bench = Bench()
    below = bench.side.below = Below(bench, 0, 1)
    bench.order(0, 1, 2)
    assert below.asked == [([named(0), named(1), named(2)], True)], "and lets others go first"
    below.answer()
    assert bench.counted == (2, 0, 0)
    bench.check()
    assert bench.told[-1] == KvCopied(hashes=hashes(0, 1), names=names(0, 1))
    bench.arrive()
    bench.read(0, 1)
    assert bench.counted == (2, 2, 0)
    assert (len(bench.side), bench.counters.prefetch_late) == (0, 0)


def test_what_is_late_or_unread_from_the_disk_is_counted_and_let_go() -> None:
    bench = Bench()
    below = bench.side.below = Below(bench, 0, 1)
    bench.order(0, 1)
    bench.arrive()
    assert bench.counters.prefetch_late == 1
    below.answer()
    bench.now += ARRIVED_KEEP_S + 1
    bench.side.tick()
    assert bench.counted == (2, 0, 2)
    bench.check()


def test_the_source_goes_before_the_disk_and_the_disk_has_the_rest() -> None:
    bench = Bench()
    below = bench.side.below = Below(bench, 1)
    bench.order(0, 1, source=1)
    assert bench.pulled() == [hashes(0)]
    assert below.asked == []
    bench.end()
    assert [asked for asked, _ in below.asked] == [[named(1)]]
    below.answer()
    assert bench.counted == (2, 0, 0)
    bench.check()


def test_without_a_disk_or_where_it_has_nothing_it_ends() -> None:
    bench = Bench()
    bench.order(0)
    bench.side.below = Below(bench)
    bench.order(1, request="s")
    assert (len(bench.side), bench.counted) == (0, (0, 0, 0))

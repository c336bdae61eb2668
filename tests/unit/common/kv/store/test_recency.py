"""One tenant may fill a store, and gives way to others when they come."""

from __future__ import annotations

import pytest

from common.kv.store.recency import owner_of
from common.kv.store.table import BlockName, StoreTable

A, B, C = b"tenant-a", b"tenant-b", b"tenant-c"


class Rig:
    """Eight slots, of which each owner may have a part."""

    def __init__(self, share: float, slots: int = 8) -> None:
        self.table = StoreTable(slots, 100.0, share=share)
        self.now, self.number = 0.0, 0

    def store(self, owner: bytes, count: int = 1) -> list[BlockName]:
        names = []
        for _ in range(count):
            self.now += 1
            self.number += 1
            name = BlockName(0, owner + self.number.to_bytes(24))
            slot = self.table.begin_write(name, owner)
            assert slot is not None
            self.table.end_write(slot, self.now, whole=True)
            self.table.check_invariants()
            names.append(name)
        return names

    def held(self, owner: bytes) -> int:
        return sum(slot.owner == owner and slot.name is not None for slot in self.table._slots)


def test_one_tenant_may_fill_a_store_that_nobody_else_uses() -> None:
    rig = Rig(0.25)
    rig.store(A, 8)
    assert rig.held(A) == 8
    names = rig.store(A, 3)
    assert rig.held(A) == 8
    assert all(name in rig.table for name in names)


def test_who_has_his_share_displaces_his_own_oldest_block() -> None:
    rig = Rig(0.5)
    others = rig.store(B, 4)
    own = rig.store(A, 4)
    rig.store(A, 10)
    assert all(name in rig.table for name in others), "they were used longer ago, and stay"
    assert own[0] not in rig.table
    assert (rig.held(A), rig.held(B)) == (4, 4)


def test_who_has_more_than_his_share_gives_way_first() -> None:
    rig = Rig(0.25)
    old = rig.store(C)
    rig.store(A, 7)
    rig.store(B, 2)
    assert (rig.held(A), rig.held(B), rig.held(C)) == (5, 2, 1)
    assert old[0] in rig.table, "though it was used longest ago"
    rig.store(B)
    assert rig.held(B) == 2, "B has its share, and makes room for itself"


def test_of_several_who_have_too_much_the_oldest_block_goes() -> None:
    rig = Rig(0.25)
    first, second = rig.store(A), rig.store(B)
    rig.store(A, 3)
    rig.store(B, 3)
    rig.store(C)
    assert (first[0] in rig.table, second[0] in rig.table) == (False, True)
    rig.store(C)
    assert second[0] not in rig.table


def test_without_shares_the_oldest_block_goes_whosever_it_is() -> None:
    rig = Rig(1.0)
    others = rig.store(B, 4)
    rig.store(A, 8)
    assert not any(name in rig.table for name in others)


def test_who_can_give_up_nothing_of_his_own_displaces_others_and_no_more_than_that() -> None:
    rig = Rig(0.25)
    rig.store(B, 6)
    own = rig.store(A, 2)
    read = rig.table.take(own, rig.now)
    rig.store(A, 5)
    assert (rig.held(A), rig.held(B)) == (3, 5)
    rig.table.end_read(read, rig.now)
    rig.store(A, 1)
    assert rig.held(B) == 5


def test_what_is_read_expires_or_is_dropped_counts_no_more_for_its_owner() -> None:
    rig = Rig(0.5)
    own = rig.store(A, 4)
    rig.table.take(own[:1], rig.now)
    rig.table.drop(own[1:2])
    rig.now += 100
    rig.table.expire(rig.now)
    rig.table.check_invariants()
    assert rig.held(A) == 1


def test_what_was_there_at_the_start_has_its_owner() -> None:
    table = StoreTable(4, 100.0, share=0.5)
    blocks = [(at, BlockName(0, bytes([at]) * 32), 10.0 + at, A) for at in range(4)]
    table.restore(blocks)
    table.check_invariants()
    assert table.begin_write(BlockName(0, b"n" * 32), B) == 0
    table.check_invariants()
    assert table.owner_in(0) == B


@pytest.mark.parametrize("salt", [None, "", "anonymous/x"])
def test_callers_without_a_key_are_nobody(salt: str | None) -> None:
    assert owner_of(salt) == b""


def test_a_tenant_is_one_owner_whatever_salts_he_adds_and_is_not_named() -> None:
    owner = owner_of("tenant:acme")
    assert owner_of("tenant:acme/a") == owner_of("tenant:acme/b/c") == owner
    assert owner_of("tenant:acm") != owner
    assert (len(owner), b"acme" in owner) == (8, False)
    assert owner_of("tenant:\ud800") != owner


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_what_is_read_and_of_no_further_use_is_the_next_to_go(share: float) -> None:
    rig = Rig(share)
    first, second = rig.store(A, 2)
    for name in (second, first):
        rig.table.end_read(rig.table.take([name], rig.now), rig.now, cold=name == second)
        rig.table.check_invariants()
    rig.store(A, 7)
    assert second not in rig.table
    assert first in rig.table


def test_a_pinned_block_that_is_read_does_not_go_though_it_is_of_no_further_use() -> None:
    rig = Rig(1.0)
    (pinned,) = rig.store(A)
    rig.table.pin([pinned])
    rig.table.end_read(rig.table.take([pinned], rig.now), rig.now, cold=True)
    rig.table.check_invariants()
    rig.store(A, 8)
    assert pinned in rig.table

"""Leases end by release or by time, tables by their size."""

from common.kv.handoff.lease import LeaseTable, Tombstones


def test_a_lease_expires_at_its_instant_and_not_before() -> None:
    table: LeaseTable[str] = LeaseTable(2)
    lease = table.grant("a", "d0", 3, now=10.0, lease_ms=500)
    assert lease is not None
    assert lease.left_ms(10.25) == 250
    assert table.expired(10.499) == []
    assert table.expired(10.5) == ["a"]
    assert table.release("a") is lease
    assert table.expired(99.0) == []
    assert table.release("a") is None


def test_a_full_table_grants_nothing_and_forgets_nothing() -> None:
    table: LeaseTable[int] = LeaseTable(2)
    assert table.grant(1, "d", 1, 0.0, 100)
    assert table.grant(2, "d", 1, 0.0, 100)
    assert table.grant(3, "d", 1, 0.0, 100) is None
    assert 1 in table
    assert 3 not in table
    table.release(1)
    assert table.grant(3, "d", 1, 0.0, 100) is not None


def test_granting_again_does_not_put_the_end_off() -> None:
    table: LeaseTable[str] = LeaseTable(1)
    table.grant("a", "d", 1, now=0.0, lease_ms=100)
    table.grant("a", "d", 1, now=5.0, lease_ms=100)
    assert table.expired(0.1) == ["a"]


def test_shortening_never_lengthens() -> None:
    table: LeaseTable[str] = LeaseTable(1)
    table.grant("a", "d", 1, now=0.0, lease_ms=1000)
    table.shorten("a", 0.5)
    table.shorten("a", 0.9)
    assert table.expired(0.5) == ["a"]
    table.shorten("unknown", 1.0)


def test_restoring_takes_back_what_shortened_it_and_no_more() -> None:
    table: LeaseTable[str] = LeaseTable(1)
    table.grant("a", "d", 1, now=0.0, lease_ms=1000)
    table.shorten("a", 0.5)
    table.restore("a")
    assert table.expired(0.9) == []
    assert table.expired(1.0) == ["a"]
    table.restore("unknown")


def test_tombstones_forget_the_oldest_first() -> None:
    dead: Tombstones[int, str] = Tombstones(2)
    dead.bury(1, "a")
    dead.bury(2, "b")
    dead.bury(1, "a2")
    dead.bury(3, "c")
    assert 2 not in dead
    assert dead.get(1) == "a2"
    assert dead.get(3) == "c"
    assert len(dead) == 2

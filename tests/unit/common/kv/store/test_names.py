"""The names of stored blocks: what is remembered of the engine's, and for how long."""

from __future__ import annotations

from common.kv.store.names import STORE, StoredNames
from common.messages import PrefixDelta


def test_hashes_that_are_numbers_are_none_of_the_engines_bytes() -> None:
    names = StoredNames(4)
    names.add(7, b"seven")
    names.add(b"eight", b"8")
    assert names.theirs() == [b"eight"]


def test_the_oldest_that_the_engine_let_go_is_forgotten_first() -> None:
    names = StoredNames(8, let_go_max=2)
    for at in (1, 2, 3):
        names.let_go(at, b"%d" % at)
    assert [names.add(at, None) for at in (1, 2, 3)] == [False, True, True]


def test_a_store_of_no_blocks_remembers_nothing() -> None:
    names = StoredNames(0, let_go_max=2)
    names.let_go(1, b"1")
    assert not names.add(1, None)


def test_a_block_that_is_told_again_is_the_last_to_go() -> None:
    names = StoredNames(2)
    names.add(1, b"1")
    names.add(2, b"2")
    names.add(1, b"1")
    names.add(3, b"3")
    assert [names.name_of(at) for at in (1, 2, 3)] == [b"1", None, b"3"]


def test_what_is_cleared_is_not_told_as_stored() -> None:
    names = StoredNames(2)
    names.add(1, b"1")
    names.clear()
    assert (len(names), names.name_of(1)) == (0, None)
    assert list(names.deltas(whole=False)) == [PrefixDelta(cleared=True, medium=STORE)]
    assert list(names.deltas(whole=False)) == []

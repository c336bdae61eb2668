"""Lent messages: read where they lie, and never one that P has begun to overwrite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.kv.digest import (
    HEADER_BYTES,
    Expected,
    Verdict,
    lent_at,
    seal_lent,
    seal_void,
)
from common.kv.kernel import Bytes, Sum, sum_of
from common.kv.lent import Loans, break_seal, lent_message, take
from common.kv.staging import Staging
from tests.unit.common.kv.sealing import judged
from tests.unit.common.kv.sealing import sealed as seal

WHAT = Expected(77, 3, 8, 2, 0, 4, 256)


def whole() -> np.ndarray:
    message = np.full(HEADER_BYTES + WHAT.payload_bytes, 9, np.uint8)
    return seal(message, WHAT)


def taken(message: Bytes, during: Bytes | None = None) -> tuple[Verdict, int]:
    """The verdict, and how often it was absorbed. `during`: begins to be overwritten meanwhile."""
    absorbed: list[Expected] = []

    def absorb(what: Expected, payload: Bytes) -> Sum:
        absorbed.append(what)
        if during is not None:
            break_seal(during)
            during[HEADER_BYTES] ^= 1
        return sum_of(payload)

    verdict = take(message, 77, 0, lambda index: WHAT if index == 3 else None, absorb).verdict
    return verdict, len(absorbed)


def test_a_sound_message_is_ok_and_a_damaged_one_is_not() -> None:
    assert taken(whole()) == (Verdict.OK, 1)
    damaged = whole()
    damaged[-1] ^= 1
    assert taken(damaged) == (Verdict.CORRUPT, 1)
    mislabelled = whole()
    mislabelled[20] ^= 1
    assert taken(mislabelled) == (Verdict.CORRUPT, 0), "nowhere to put it"


def test_a_seal_that_broke_while_it_was_read_makes_it_lost() -> None:
    message = whole()
    assert taken(message, during=message) == (Verdict.LOST, 1)


def test_a_loan_that_was_called_back_is_lost_and_not_damaged() -> None:
    message = whole()
    break_seal(message)
    assert taken(message) == (Verdict.LOST, 0)
    other = replace(WHAT, transfer=78)
    seal(message, other)
    assert taken(message) == (Verdict.LOST, 0)


def test_where_nothing_can_lie_nothing_was_sent() -> None:
    arena = whole()
    for memory, offset in ((None, 0), (arena, arena.nbytes), (arena, 1 << 60), (arena, 64)):
        assert taken(lent_message(memory, offset, 256)) == (Verdict.LOST, 0)
    assert taken(lent_message(arena, 0, 256)) == (Verdict.OK, 1)


def test_a_pointer_names_its_slot_and_is_neither_data_nor_void() -> None:
    pointer = np.zeros(HEADER_BYTES, np.uint8)
    seal_lent(pointer, 77, 5, 4096)
    assert lent_at(pointer, 77, 5) == 4096
    assert lent_at(pointer, 77, 6) is None
    assert lent_at(pointer, 78, 5) is None
    assert judged(pointer, 77, 5, lambda _: WHAT).verdict is Verdict.CORRUPT
    assert lent_at(whole()[:HEADER_BYTES], 77, 5) is None
    seal_void(pointer, 77, 5)
    assert lent_at(pointer, 77, 5) is None


def lending(count: int) -> tuple[Staging, Loans, list[int]]:
    staging = Staging(1000, count * 1064, shared=True)
    loans = Loans(staging)
    offsets = []
    for n in range(count):
        buffer = staging.take()
        assert buffer is not None
        offsets.append(loans.lend(buffer, peer=n % 2, transfer=70 + n))
    return staging, loans, offsets


def test_a_loan_comes_back_once_and_only_from_who_has_it() -> None:
    staging, loans, offsets = lending(4)
    assert len(set(offsets)) == 4
    loans.taken(1, 71, (offsets[0], offsets[1], offsets[3], 12_345))
    loans.taken(1, 71, (offsets[1],))
    assert (staging.used, len(loans)) == (3, 3)


def test_loans_end_with_their_transfer() -> None:
    staging, loans, _ = lending(4)
    loans.review(lambda transfer: transfer == 72)
    assert (staging.used, len(loans)) == (1, 1)
    loans.review(lambda _: False)
    assert (staging.used, len(loans)) == (0, 0)


def test_who_waits_for_a_buffer_gets_the_one_that_comes_back() -> None:
    staging, loans, offsets = lending(2)
    got: list[int] = []

    def use(buffer: np.ndarray) -> bool:
        got.append(staging.offset(buffer))
        return True

    staging.claim(use)
    assert got == []
    loans.taken(1, 71, (offsets[1],))
    assert got == [offsets[1]]

"""Loaned messages: read where they lie, and never one that P has begun to overwrite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import (
    HEADER_BYTES,
    ExpectedMessage,
    Verdict,
    loan_offset,
    write_loan,
    write_void,
)
from common.kv.checksum.kernel import sum_of
from common.kv.staging.loans import Loans, invalidate_header, loaned_message, verify_loan
from common.kv.staging.pool import Buffer, StagingPool
from tests.unit.common.kv.headers import verify, with_header

EXPECTED = ExpectedMessage(77, 3, 8, 2, 0, 4, 256)


def whole() -> np.ndarray:
    message = np.full(HEADER_BYTES + EXPECTED.payload_bytes, 9, np.uint8)
    return with_header(message, EXPECTED)


def verified(message: Bytes, during: Bytes | None = None) -> tuple[Verdict, int]:
    """The verdict, and how often it was copied. `during`: the message overwritten meanwhile."""
    copied: list[ExpectedMessage] = []

    def copy_in(expected: ExpectedMessage, payload: Bytes) -> Sum:
        copied.append(expected)
        if during is not None:
            invalidate_header(during)
            during[HEADER_BYTES] ^= 1
        return sum_of(payload)

    verdict = verify_loan(
        message, 77, 0, lambda index: EXPECTED if index == 3 else None, copy_in
    ).verdict
    return verdict, len(copied)


def test_a_sound_message_is_ok_and_a_damaged_one_is_not() -> None:
    assert verified(whole()) == (Verdict.OK, 1)
    damaged = whole()
    damaged[-1] ^= 1
    assert verified(damaged) == (Verdict.CORRUPT, 1)
    mislabelled = whole()
    mislabelled[20] ^= 1
    assert verified(mislabelled) == (Verdict.CORRUPT, 0), "nowhere to put it"


def test_a_message_whose_header_changes_while_it_is_read_is_lost() -> None:
    message = whole()
    assert verified(message, during=message) == (Verdict.LOST, 1)


def test_a_loan_that_p_has_ended_is_lost_and_not_damaged() -> None:
    message = whole()
    invalidate_header(message)
    assert verified(message) == (Verdict.LOST, 0)
    other = replace(EXPECTED, transfer=78)
    with_header(message, other)
    assert verified(message) == (Verdict.LOST, 0)


def test_an_offset_outside_the_segment_is_a_lost_message() -> None:
    segment = whole()
    for memory, offset in ((None, 0), (segment, segment.nbytes), (segment, 1 << 60), (segment, 64)):
        assert verified(loaned_message(memory, offset, 256)) == (Verdict.LOST, 0)
    assert verified(loaned_message(segment, 0, 256)) == (Verdict.OK, 1)


def test_an_offset_names_its_slot_and_is_neither_data_nor_void() -> None:
    offset_message = np.zeros(HEADER_BYTES, np.uint8)
    write_loan(offset_message, 77, 5, 4096)
    assert loan_offset(offset_message, 77, 5) == 4096
    assert loan_offset(offset_message, 77, 6) is None
    assert loan_offset(offset_message, 78, 5) is None
    assert verify(offset_message, 77, 5, lambda _: EXPECTED).verdict is Verdict.CORRUPT
    assert loan_offset(whole()[:HEADER_BYTES], 77, 5) is None
    write_void(offset_message, 77, 5)
    assert loan_offset(offset_message, 77, 5) is None


def lending(count: int) -> tuple[StagingPool, Loans, list[int]]:
    pool = StagingPool(1000, count * 1064, shared=True)
    loans = Loans(pool)
    offsets = []
    for n in range(count):
        buffer = pool.acquire()
        assert buffer is not None
        offsets.append(loans.lend(buffer, peer=n % 2, transfer=70 + n))
    return pool, loans, offsets


def test_a_loan_is_ended_once_and_only_by_the_peer_that_has_it() -> None:
    pool, loans, offsets = lending(4)
    assert len(set(offsets)) == 4
    loans.end_read(1, 71, (offsets[0], offsets[1], offsets[3], 12_345))
    loans.end_read(1, 71, (offsets[1],))
    assert (pool.used, len(loans)) == (3, 3)
    loans.end_read(1, 70, (offsets[0],))
    assert (pool.used, len(loans)) == (3, 3), "another peer names the same transfer"


def test_loans_end_with_their_transfer() -> None:
    pool, loans, _ = lending(4)
    loans.end_unserved(lambda transfer: transfer == 72)
    assert (pool.used, len(loans)) == (1, 1)
    loans.end_unserved(lambda _: False)
    assert (pool.used, len(loans)) == (0, 0)


def test_a_claim_gets_the_buffer_of_a_loan_that_ends() -> None:
    pool, loans, offsets = lending(2)
    got: list[int] = []

    def use(buffer: Buffer) -> bool:
        got.append(pool.offset(buffer))
        return True

    pool.claim(use)
    assert got == []
    loans.end_read(1, 71, (offsets[1],))
    assert got == [offsets[1]]

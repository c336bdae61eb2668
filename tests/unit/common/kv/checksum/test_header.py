"""A message is accepted only if it is exactly the one that was asked for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv.checksum.header import (
    HEADER_BYTES,
    Arrival,
    ExpectedMessage,
    Verdict,
    loan_offset,
    write_loan,
    write_void,
)
from tests.unit.common.kv.headers import verdict_of, verify
from tests.unit.common.kv.headers import with_header as write_header

EXPECTED = ExpectedMessage(
    transfer=77, index=3, first_block=12, blocks=2, first_layer=4, layers=4, payload_bytes=4096
)


def with_header(expected: ExpectedMessage = EXPECTED) -> np.ndarray:
    message = np.random.default_rng(5).integers(0, 256, expected.message_bytes, dtype=np.uint8)
    return write_header(message, expected)


def test_what_was_sealed_is_ok() -> None:
    assert verdict_of(with_header(), EXPECTED) is Verdict.OK


@pytest.mark.parametrize("early_bytes", [0, 4096])
def test_no_flipped_header_bit_passes(early_bytes: int) -> None:
    for bit in range(8 * HEADER_BYTES):
        message = np.zeros(EXPECTED.message_bytes, np.uint8)
        write_header(message, EXPECTED, early_bytes)
        message[bit // 8] ^= 1 << bit % 8
        assert verdict_of(message, EXPECTED) is Verdict.CORRUPT, bit


def test_no_flipped_bit_of_a_void_passes() -> None:
    for bit in range(8 * HEADER_BYTES):
        message = np.zeros(EXPECTED.message_bytes, np.uint8)
        write_void(message, EXPECTED.transfer, EXPECTED.index)
        message[bit // 8] ^= 1 << bit % 8
        assert verdict_of(message, EXPECTED) is Verdict.CORRUPT, bit


def test_a_slot_takes_any_message_of_its_transfer_and_says_which() -> None:
    other = replace(EXPECTED, index=4, first_block=14)

    def planned(index: int) -> ExpectedMessage | None:
        return {3: EXPECTED, 4: other}.get(index)

    message = with_header(other)
    assert verify(message, 77, 0, planned) == Arrival(Verdict.OK, 4)
    assert verify(message, 77, 0, lambda _: None).verdict is Verdict.CORRUPT
    write_header(message, EXPECTED, early_bytes=9)
    assert verify(message, 77, 0, planned) == Arrival(Verdict.OK, 3, 9)


@given(bit=st.integers(0, 8 * 4096 - 1))
def test_any_flipped_payload_bit_is_corrupt(bit: int) -> None:
    message = with_header()
    message[HEADER_BYTES + bit // 8] ^= 1 << bit % 8
    assert verdict_of(message, EXPECTED) is Verdict.CORRUPT


@pytest.mark.parametrize(
    "other",
    [
        replace(EXPECTED, transfer=78),
        replace(EXPECTED, index=2),
        replace(EXPECTED, first_block=13),
        replace(EXPECTED, blocks=1),
        replace(EXPECTED, first_layer=3),
        replace(EXPECTED, layers=3),
        replace(EXPECTED, payload_bytes=2048),
    ],
)
def test_a_good_message_in_the_wrong_place_is_corrupt(other: ExpectedMessage) -> None:
    message = with_header(other)
    padded = np.zeros(EXPECTED.message_bytes, np.uint8)
    padded[: len(message)] = message
    assert verdict_of(padded, EXPECTED) is Verdict.CORRUPT


def test_the_seed_binds_a_payload_to_its_transfer() -> None:
    """Same bytes, header rewritten by hand to the other transfer: the digest still tells."""
    message, other = with_header(), replace(EXPECTED, transfer=78)
    relabelled = message.copy()
    relabelled[8:16] = np.frombuffer((78).to_bytes(8, "little"), np.uint8)
    assert verdict_of(relabelled, other) is Verdict.CORRUPT


def test_a_void_is_a_void_only_for_its_own_message() -> None:
    message = np.zeros(EXPECTED.message_bytes, np.uint8)
    write_void(message, EXPECTED.transfer, EXPECTED.index)
    assert verdict_of(message, EXPECTED) is Verdict.VOID
    assert verdict_of(message, replace(EXPECTED, index=4)) is Verdict.CORRUPT


def test_an_untouched_buffer_is_corrupt() -> None:
    assert verdict_of(np.zeros(EXPECTED.message_bytes, np.uint8), EXPECTED) is Verdict.CORRUPT


# ---------------------------------------------------------------- under a key of the transfer

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def keyed() -> np.ndarray:
    return write_header(with_header(), EXPECTED, 9, key=KEY)


def test_a_message_is_good_under_its_key_only() -> None:
    assert verdict_of(keyed(), EXPECTED, key=KEY) is Verdict.OK
    for key in (b"", OTHER_KEY):
        assert verdict_of(keyed(), EXPECTED, key=key) is Verdict.CORRUPT
    assert verdict_of(with_header(), EXPECTED, key=KEY) is Verdict.CORRUPT


def test_no_flipped_header_bit_passes_under_a_key() -> None:
    for bit in range(8 * HEADER_BYTES):
        message = keyed()
        message[bit // 8] ^= 1 << bit % 8
        assert verdict_of(message, EXPECTED, key=KEY) is Verdict.CORRUPT, bit


def test_a_payload_cannot_be_changed_by_who_can_compute_the_digest_but_not_the_key() -> None:
    message = keyed()
    message[HEADER_BYTES] ^= 1
    forged = write_header(message.copy(), EXPECTED, 9)
    assert verdict_of(forged, EXPECTED) is Verdict.OK, "without a key he can"
    assert verdict_of(forged, EXPECTED, key=KEY) is Verdict.CORRUPT
    assert verdict_of(message, EXPECTED, key=KEY) is Verdict.CORRUPT


@pytest.mark.parametrize("key", [b"", OTHER_KEY])
def test_voids_and_loans_are_good_under_their_key_only(key: bytes) -> None:
    message = np.zeros(EXPECTED.message_bytes, np.uint8)
    write_void(message, 77, 3, key=KEY)
    assert verdict_of(message, EXPECTED, key=KEY) is Verdict.VOID
    assert verdict_of(message, EXPECTED, key=key) is Verdict.CORRUPT
    write_loan(message, 77, 3, 4096, key=KEY)
    assert loan_offset(message, 77, 3, key=KEY) == 4096
    assert loan_offset(message, 77, 3, key=key) is None
    message[HEADER_BYTES - 7] ^= 1
    assert loan_offset(message, 77, 3, key=KEY) is None

"""A message is accepted only if it is exactly the one that was asked for."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv.digest import HEADER_BYTES, Expected, Verdict, check, seal, seal_void

EXPECTED = Expected(transfer=77, index=3, first_block=12, blocks=2, layers=4, payload_bytes=4096)


def sealed(expected: Expected = EXPECTED) -> np.ndarray:
    message = np.random.default_rng(5).integers(0, 256, expected.message_bytes, dtype=np.uint8)
    seal(message, expected)
    return message


def test_what_was_sealed_is_ok() -> None:
    assert check(sealed(), EXPECTED) is Verdict.OK


@given(bit=st.integers(0, 8 * (HEADER_BYTES - 16) - 1))
def test_no_flipped_header_bit_passes(bit: int) -> None:
    message = sealed()
    message[bit // 8] ^= 1 << bit % 8
    reserved = bit // 8 in (6, 7)
    assert reserved or check(message, EXPECTED) is not Verdict.OK


@given(bit=st.integers(0, 8 * 4096 - 1))
def test_any_flipped_payload_bit_is_corrupt(bit: int) -> None:
    message = sealed()
    message[HEADER_BYTES + bit // 8] ^= 1 << bit % 8
    assert check(message, EXPECTED) is Verdict.CORRUPT


@pytest.mark.parametrize(
    "other",
    [
        replace(EXPECTED, transfer=78),
        replace(EXPECTED, index=2),
        replace(EXPECTED, first_block=13),
        replace(EXPECTED, blocks=1),
        replace(EXPECTED, layers=3),
        replace(EXPECTED, payload_bytes=2048),
    ],
)
def test_a_good_message_in_the_wrong_place_is_corrupt(other: Expected) -> None:
    message = sealed(other)
    padded = np.zeros(EXPECTED.message_bytes, np.uint8)
    padded[: len(message)] = message
    assert check(padded, EXPECTED) is Verdict.CORRUPT


def test_the_seed_binds_a_payload_to_its_transfer() -> None:
    """Same bytes, header rewritten by hand to the other transfer: the digest still tells."""
    message, other = sealed(), replace(EXPECTED, transfer=78)
    relabelled = message.copy()
    relabelled[8:16] = np.frombuffer((78).to_bytes(8, "little"), np.uint8)
    assert check(relabelled, other) is Verdict.CORRUPT


def test_a_void_is_a_void_only_for_its_own_message() -> None:
    message = np.zeros(EXPECTED.message_bytes, np.uint8)
    seal_void(message, EXPECTED.transfer, EXPECTED.index)
    assert check(message, EXPECTED) is Verdict.VOID
    assert check(message, replace(EXPECTED, index=4)) is Verdict.CORRUPT


def test_an_untouched_buffer_is_corrupt() -> None:
    assert check(np.zeros(EXPECTED.message_bytes, np.uint8), EXPECTED) is Verdict.CORRUPT

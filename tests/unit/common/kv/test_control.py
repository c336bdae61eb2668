"""A control message arrives as it was sent or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import WireError
from common.kv.control import HEAD_BYTES, SLOT_BYTES, pack, unpack

FRAME = bytes(range(200))


def test_what_is_packed_is_unpacked() -> None:
    for frame in (b"x", FRAME, b"y" * (SLOT_BYTES - HEAD_BYTES)):
        assert unpack(pack(frame)) == frame


@pytest.mark.parametrize("at", [0, 3, 4, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + len(FRAME) - 1])
def test_one_bent_bit_anywhere_is_noticed(at: int) -> None:
    slot = pack(FRAME)
    slot[at] ^= 16
    with pytest.raises(WireError):
        unpack(slot)


def test_a_slot_that_was_not_filled_is_noticed() -> None:
    """UCX reports a shorter message as a whole one: the rest is what stood there before."""
    slot = pack(FRAME)
    slot[HEAD_BYTES + 10 :] = pack(FRAME[::-1])[HEAD_BYTES + 10 :]
    with pytest.raises(WireError):
        unpack(slot)
    with pytest.raises(WireError):
        unpack(np.zeros(SLOT_BYTES, np.uint8))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(WireError):
        pack(b"z" * (SLOT_BYTES - HEAD_BYTES + 1))

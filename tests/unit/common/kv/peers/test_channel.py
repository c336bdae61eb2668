"""A control message arrives as it was sent or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from common.errors import WireError
from common.kv.peers.authentication import FaultSeals
from common.kv.peers.channel import CONTROL_FRAME_BYTES, HEAD_BYTES, pack_frame, unpack_frame

SEALS = FaultSeals()
BODY = bytes(range(200))


def test_what_is_packed_is_unpacked() -> None:
    for body in (b"x", BODY, b"y" * (CONTROL_FRAME_BYTES - HEAD_BYTES)):
        assert unpack_frame(pack_frame(body, SEALS), SEALS) == body


@pytest.mark.parametrize("at", [0, 3, 4, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + len(BODY) - 1])
def test_one_flipped_bit_anywhere_is_noticed(at: int) -> None:
    frame = pack_frame(BODY, SEALS)
    frame[at] ^= 16
    with pytest.raises(WireError):
        unpack_frame(frame, SEALS)


def test_a_frame_that_was_not_filled_is_noticed() -> None:
    """UCX reports a shorter message as a whole one: the rest is what stood there before."""
    frame = pack_frame(BODY, SEALS)
    frame[HEAD_BYTES + 10 :] = pack_frame(BODY[::-1], SEALS)[HEAD_BYTES + 10 :]
    with pytest.raises(WireError):
        unpack_frame(frame, SEALS)
    with pytest.raises(WireError):
        unpack_frame(np.zeros(CONTROL_FRAME_BYTES, np.uint8), SEALS)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(WireError):
        pack_frame(b"z" * (CONTROL_FRAME_BYTES - HEAD_BYTES + 1), SEALS)

"""Staging is bounded, and fair to those who wait."""

import numpy as np

from common.kv.staging import Staging


def test_never_more_buffers_than_the_bound_and_each_is_used_by_one() -> None:
    pool = Staging(payload_bytes=1000, total_bytes=3 * 1064)
    buffers = [pool.take() for _ in range(3)]
    assert pool.take() is None
    assert pool.used == 3
    held = [buffer for buffer in buffers if buffer is not None]
    assert len({buffer.ctypes.data for buffer in held}) == 3
    assert all(buffer.nbytes == 1064 and buffer.ctypes.data % 4096 == 0 for buffer in held)
    pool.give(held[0])
    assert pool.take() is held[0]


def test_claims_are_served_in_order_and_go_before_takers() -> None:
    pool = Staging(1000, 2 * 1064)
    first, second = pool.take(), pool.take()
    assert first is not None
    assert second is not None
    served: list[str] = []

    def claim(name: str, *, wants: bool = True) -> None:
        def use(_: np.ndarray) -> bool:
            served.append(name)
            return wants

        pool.claim(use)

    claim("a")
    claim("b", wants=False)
    claim("c")
    assert pool.take() is None
    pool.give(first)
    assert served == ["a"]
    pool.give(second)
    assert served == ["a", "b", "c"]
    assert pool.used == 2

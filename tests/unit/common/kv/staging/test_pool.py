"""A staging pool is bounded, and fair to the claims that wait."""

import numpy as np

from common.kv.staging.pool import Buffer, StagingPool


def test_never_more_buffers_than_the_bound_and_each_is_used_by_one() -> None:
    pool = StagingPool(payload_bytes=1000, total_bytes=3 * 1064)
    buffers = [pool.acquire() for _ in range(3)]
    assert pool.acquire() is None
    assert pool.used == 3
    held = [buffer for buffer in buffers if buffer is not None]
    messages = [buffer.message for buffer in held if buffer.message is not None]
    assert len({message.ctypes.data for message in messages}) == 3
    assert all(one.nbytes == 1064 and one.ctypes.data % 4096 == 0 for one in messages)
    assert np.shares_memory(held[0].header, messages[0][:64])
    assert (held[0].header.nbytes, held[0].payload.nbytes) == (64, 1000)
    pool.release(held[0])
    assert pool.acquire() is held[0]


def test_claims_are_served_in_order_and_before_acquire() -> None:
    pool = StagingPool(1000, 2 * 1064)
    first, second = pool.acquire(), pool.acquire()
    assert first is not None
    assert second is not None
    served: list[str] = []

    def claim(name: str, *, wants: bool = True) -> None:
        def use(_: Buffer) -> bool:
            served.append(name)
            return wants

        pool.claim(use)

    claim("a")
    claim("b", wants=False)
    claim("c")
    assert pool.acquire() is None
    pool.release(first)
    assert served == ["a"]
    pool.release(second)
    assert served == ["a", "b", "c"]
    assert pool.used == 2

"""vLLM's own pool of blocks: what is put into its prefix cache is found, and goes like the rest."""

from __future__ import annotations

from vllm.v1.core.block_pool import BlockPool

from common.engine.connector.engine_pool import EnginePool
from common.kv.store.table import BlockName

BLOCKS = 9
"""One of them is vLLM's own, the null block."""


def name(number: int) -> BlockName:
    return BlockName(0, bytes([number]) * 32)


def made() -> EnginePool:
    return EnginePool(BlockPool(BLOCKS, enable_caching=True, hash_block_size=16))


def test_what_is_given_back_with_a_name_is_found() -> None:
    pool = made()
    taken = pool.take(3)
    assert (len(set(taken)), pool.free) == (3, BLOCKS - 4)
    assert name(0) not in pool, "it is being filled"
    pool.give_back({taken[0]: name(0), taken[1]: None, taken[2]: name(2)})
    assert pool.free == BLOCKS - 1
    assert (name(0) in pool, name(1) in pool, name(2) in pool) == (True, False, True)
    assert BlockName(1, name(0).block_hash) not in pool, "of another group"


def test_the_end_of_a_prompt_goes_before_its_beginning() -> None:
    pool = made()
    taken = pool.take(3)
    pool.give_back({block_id: name(at) for at, block_id in enumerate(taken)})
    pool.take(BLOCKS - 4)
    assert all(name(at) in pool for at in range(3)), "others were free"
    for left in (2, 1, 0):
        assert [at for at in range(3) if name(at) in pool] == list(range(left + 1))
        pool.take(1)
    assert name(0) not in pool
    assert pool.free == 0


def test_a_block_that_somebody_else_cached_meanwhile_stays_theirs() -> None:
    pool = made()
    first, second = pool.take(2)
    pool.give_back({first: name(0)})
    pool.give_back({second: name(0)})
    assert pool.take(1) == [second], "what nobody can find is taken first"
    assert name(0) in pool

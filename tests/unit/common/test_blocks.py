"""A number of tokens in whole blocks."""

from common.blocks import blocks_for, whole_blocks


def test_a_block_that_is_begun_counts() -> None:
    assert [blocks_for(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert [whole_blocks(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 16, 16, 32]

"""Messages cover the transfer once, without gaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv.plan import Plan, Shape, message_blocks

SHAPE = Shape(layers=4, block_bytes=1000)


@given(st.integers(0, 500), st.integers(0, 300), st.integers(1, 40))
def test_messages_cover_every_block_once_in_order(first: int, blocks: int, size: int) -> None:
    plan = Plan(1, first, blocks, size, SHAPE)
    covered: list[int] = []
    for index in range(plan.messages):
        message = plan.message(index)
        assert 1 <= message.blocks <= size
        assert message.payload_bytes == message.blocks * 1000
        covered += range(message.first_block, message.first_block + message.blocks)
    assert covered == list(range(first, first + blocks))


@pytest.mark.parametrize("bad", [(-1, 1, 1), (0, -1, 1), (0, 1, 0), (0, 1 << 21, 1)])
def test_impossible_transfers_are_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="transfer"):
        Plan(1, *bad, SHAPE)


def test_a_message_outside_the_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="message"):
        Plan(1, 0, 4, 2, SHAPE).message(2)


def test_a_block_larger_than_a_message_travels_alone() -> None:
    assert message_blocks(4096, 1000) == 4
    assert message_blocks(4096, 5000) == 1

"""Messages cover the transfer once, without gaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv.plan import (
    Chunking,
    KvShape,
    TransferChunking,
    TransferPlan,
    default_layer_groups,
    message_blocks,
    transfer_chunking,
)

SHAPE = KvShape(layers=4, block_bytes=1000)


@given(st.integers(0, 500), st.integers(0, 300), st.integers(1, 40), st.integers(1, 9))
def test_messages_cover_every_layer_of_every_block_once_in_order(
    first: int, blocks: int, size: int, groups: int
) -> None:
    plan = TransferPlan(1, first, blocks, size, SHAPE, groups)
    covered: dict[int, list[int]] = {}
    for index in range(plan.messages):
        message = plan.message(index)
        assert 1 <= message.blocks <= size
        assert message.payload_bytes == message.blocks * message.layers * 250
        assert message.payload_bytes <= plan.payload_bytes_max
        for block in range(message.first_block, message.end_block):
            covered.setdefault(block, []).extend(range(message.first_layer, message.end_layer))
    assert covered == {block: [0, 1, 2, 3] for block in range(first, first + blocks)}
    assert list(covered) == sorted(covered)


@pytest.mark.parametrize(
    "bad", [(-1, 1, 1), (0, -1, 1), (0, 1, 0), (0, 1 << 21, 1), (0, 1 << 19, 1, 4), (0, 1, 1, 0)]
)
def test_impossible_transfers_are_refused(bad: tuple[int, ...]) -> None:
    first, blocks, size, groups = (*bad, 1)[:4]
    with pytest.raises(ValueError, match="transfer"):
        TransferPlan(1, first, blocks, size, SHAPE, groups)


def test_a_message_outside_the_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="message"):
        TransferPlan(1, 0, 4, 2, SHAPE).message(2)


@pytest.mark.parametrize(
    ("groups", "blocks", "expected"),
    [
        (1, 4, 8),
        (1, 24, 8),
        (1, 160, 10),
        (1, 400, 16),
        (2, 4, 16),
        (2, 400, 32),
        (4, 160, 40),
        (4, 400, 64),
    ],
)
def test_a_message_is_a_sixteenth_of_the_transfer_between_two_mib_and_the_limit(
    groups: int, blocks: int, expected: int
) -> None:
    shape = KvShape(layers=4, block_bytes=1 << 18)
    assert message_blocks(4 << 20, shape, groups, blocks) == expected


def test_a_wire_gets_more_and_smaller_messages_than_memory() -> None:
    shape = KvShape(layers=4, block_bytes=1 << 18)
    assert transfer_chunking(4 << 20, shape, 1, 400) == TransferChunking(
        wire=Chunking(8, 8), loan=Chunking(16, 2)
    )
    assert transfer_chunking(4 << 20, shape, 1, 24) == TransferChunking(
        wire=Chunking(8, 8), loan=Chunking(8, 4)
    )
    assert transfer_chunking(1 << 20, shape, 1, 400) == TransferChunking(
        wire=Chunking(4, 8), loan=Chunking(4, 8)
    )
    assert transfer_chunking(64 << 20, KvShape(4, 32 << 20), 1, 4) == TransferChunking(
        wire=Chunking(1, 2), loan=Chunking(1, 2)
    )


def test_from_card_to_card_messages_are_few_and_large() -> None:
    shape = KvShape(layers=4, block_bytes=1 << 18)
    direct = [transfer_chunking(4 << 20, shape, 1, n, 32 << 20).direct for n in (16, 400, 4000)]
    assert direct == [Chunking(8, 8), Chunking(100, 8), Chunking(128, 8)]


def test_a_block_larger_than_a_message_travels_alone() -> None:
    assert message_blocks(4096, KvShape(4, 8192), 1, 100) == 1


@pytest.mark.parametrize(
    ("layers", "blocks", "expected"),
    [(4, 0, 1), (4, 7, 1), (4, 8, 2), (4, 400, 4), (32, 1, 2), (32, 2, 4), (32, 400, 8)],
)
def test_layers_are_cut_as_finely_as_leaves_each_group_a_mib(
    layers: int, blocks: int, expected: int
) -> None:
    assert default_layer_groups(KvShape(layers, layers << 16), blocks) == expected

"""How far a request with a KV budget may grow before it has to ask."""

from __future__ import annotations

import pytest

from common.blocks import Kept, KvGroup
from services.router.placement.budget import ALL, Step, next_step
from services.router.placement.types import WorkerView

BLOCK_BYTES = 1024


def view(*groups: KvGroup, block_tokens: int = 16) -> WorkerView:
    return WorkerView(
        "d0", "d0|1", "1", "f", "a:1", block_tokens, 1000, 0, 1600, 0, 8,
        kv_token_bytes=BLOCK_BYTES / block_tokens, kv_groups=groups,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "step"),
    [
        (1, Step(160, 128)),
        (143, Step(160, 128)),  # 10 blocks, one of them and a token to grow into
        (144, Step(320, 288)),
        (160, Step(320, 288)),
        (305, Step(480, 448)),
    ],
)
def test_it_is_promised_the_fewest_budgets_that_leave_a_block_to_grow(
    tokens: int, step: Step
) -> None:
    assert next_step(tokens, 900, 10 * BLOCK_BYTES, view()) == step


def test_what_fits_into_its_budget_never_asks() -> None:
    assert next_step(40, 160, 10 * BLOCK_BYTES, view()) == ALL
    assert next_step(40, 161, 10 * BLOCK_BYTES, view()) == Step(160, 128)


def test_a_budget_holds_whole_blocks_and_at_least_one() -> None:
    assert next_step(1, 900, 11 * BLOCK_BYTES - 1, view()).tokens == 160
    assert next_step(20, 900, 1, view()).tokens == 48


def test_without_a_budget_or_a_known_block_all_is_promised() -> None:
    assert next_step(40, 900, 0, view()) == ALL
    assert next_step(40, 900, 4096, view()._replace(kv_token_bytes=0.0)) == ALL


def test_blocks_of_all_groups_count() -> None:
    """A window holds what it holds, so that the others get the rest of each budget."""
    full, window = KvGroup(16), KvGroup(16, Kept.WINDOW, reach=32)
    step = next_step(100, 900, 10 * BLOCK_BYTES, view(full, window))
    both = view(full, window)
    assert both.kv_need(step.tokens) == 320 < both.kv_need(step.tokens + 1)
    assert step.tokens == 320 - 3 * 16, "the window has three blocks"


def test_a_stream_whose_layers_keep_no_more_asks_for_no_more() -> None:
    window = KvGroup(16, Kept.WINDOW, reach=32)
    assert next_step(10, 900, 10 * BLOCK_BYTES, view(window)) == ALL

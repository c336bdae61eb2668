"""LoRA on a CPU: each token through the matrices of its own adapter, or of none."""

from __future__ import annotations

import pytest
import torch

from common.engine.vllm import lora_on_cpu as ours

TOKENS, WIDTH, RANK, OUT, SLOTS = 7, 12, 4, 10, 3


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dice = torch.Generator().manual_seed(3)
    draw = [(TOKENS, WIDTH), (SLOTS, 1, RANK, WIDTH), (SLOTS, 1, OUT, RANK)]
    x, first, second = (torch.randn(*size, generator=dice) for size in draw)
    return x, first, second


@pytest.mark.parametrize("slots", [[0] * 7, [-1] * 7, [2, 2, -1, 0, 0, -1, 1]])
def test_tokens_without_an_adapter_are_left_alone(slots: list[int]) -> None:
    x, first, second = tensors()
    middle, out = torch.full((TOKENS, RANK), 9.0), torch.ones(TOKENS, OUT)
    numbers = torch.tensor(slots)
    ours.bgmv_shrink(x, first, middle, numbers, 0.5)
    ours.bgmv_expand(middle, second, out, numbers)
    for row, slot in enumerate(slots):
        added = second[slot, 0] @ (0.5 * first[slot, 0] @ x[row]) if slot >= 0 else 0.0
        assert torch.allclose(out[row], torch.ones(OUT) + added, atol=1e-5)


def test_runs_of_tokens_and_columns_of_the_output() -> None:
    x, first, second = tensors()
    lengths, slots = torch.tensor([3, 2, 2]), torch.tensor([1, -1, 0])
    runs = (torch.tensor([0, 3, 5]), lengths, slots, 3, 3, TOKENS)
    each = slots.repeat_interleave(lengths)
    by_run, by_token = torch.zeros(TOKENS, RANK), torch.zeros(TOKENS, RANK)
    ours.sgmv_shrink(x, first, by_run, *runs, 2.0)
    ours.bgmv_shrink(x, first, by_token, each, 2.0)
    assert torch.equal(by_run, by_token)
    wide, narrow = torch.ones(TOKENS, 2 * OUT), torch.ones(TOKENS, OUT)
    ours.sgmv_expand_slice(by_run, second, wide, *runs, OUT, OUT, True)
    ours.sgmv_expand(by_run, second, narrow, *runs, True)
    assert torch.equal(wide[:, OUT:], narrow)
    assert torch.equal(wide[:, :OUT], torch.ones(TOKENS, OUT))
    ours.bgmv_expand(by_run, second, narrow, each, add_inputs=False)
    assert torch.equal(narrow[3:5], torch.zeros(2, OUT))


def test_vllm_has_the_operations_that_are_replaced() -> None:
    from vllm.lora.punica_wrapper import punica_cpu

    before = {name: getattr(punica_cpu, name) for name in ours.PATCHED}
    try:
        ours.install()
        assert all(getattr(punica_cpu, name) is getattr(ours, name) for name in ours.PATCHED)
    finally:
        for name, function in before.items():
            setattr(punica_cpu, name, function)

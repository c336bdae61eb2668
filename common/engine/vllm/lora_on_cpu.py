"""The operations of LoRA on a CPU, in place of vLLM 0.32's.

Theory of operation: vLLM numbers the adapter of each token, and a token without one has the number
-1. Its own operations for CPUs take that for the last slot, so that a request without an adapter is
computed with whichever adapter lies there, as soon as another request of its batch has one. They
also copy an adapter's weights once for each token, which makes a prompt of some hundred tokens take
seconds. Here tokens are grouped by adapter, each group is one product of matrices, and tokens
without an adapter are left alone. The engine's process is forked from the worker's, and has what
was installed there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

PATCHED = (
    "bgmv_shrink",
    "bgmv_expand",
    "bgmv_expand_slice",
    "sgmv_shrink",
    "sgmv_expand",
    "sgmv_expand_slice",
)


def install_for(made: VllmConfig) -> None:
    """As `install`, if this engine needs it."""
    if made.lora_config is not None and made.device_config.device_type == "cpu":
        install()


def install() -> None:
    """In this process, and in those that it forks. Idempotent. Raises AttributeError for another
    vLLM, which has other names for these operations."""
    from vllm.lora.punica_wrapper import punica_cpu

    for name in PATCHED:
        getattr(punica_cpu, name)
        setattr(punica_cpu, name, globals()[name])


def bgmv_shrink(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    slots: torch.Tensor,
    scaling: float = 1.0,
) -> None:
    """`output` = `scaling` x `inputs` through the first matrix of each row's adapter."""
    width = weights.shape[-2]
    output[:, :width] = 0
    for slot, rows in _groups(slots):
        output[rows, :width] = scaling * _product(inputs, rows, weights[slot], output)


def bgmv_expand(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    slots: torch.Tensor,
    add_inputs: bool = True,
) -> None:
    """`output` += `inputs` through the second matrix of each row's adapter."""
    width = min(weights.shape[-2], output.shape[1])
    bgmv_expand_slice(inputs, weights, output, slots, 0, width, add_inputs)


def bgmv_expand_slice(  # noqa: PLR0917 - vLLM's own signature
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    slots: torch.Tensor,
    slice_offset: int,
    slice_size: int,
    add_inputs: bool = True,
) -> None:
    """The same for some columns of `output`."""
    columns = slice(slice_offset, slice_offset + slice_size)
    if not add_inputs:
        output[:, columns] = 0
    for slot, rows in _groups(slots):
        output[rows, columns] += _product(inputs, rows, weights[slot], output)[:, :slice_size]


def sgmv_shrink(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    _starts: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    *rest: Any,
) -> None:
    """As `bgmv_shrink`; `slots` has one number for each run of `lengths` tokens."""
    bgmv_shrink(inputs, weights, output, slots.repeat_interleave(lengths), rest[-1])


def sgmv_expand(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    _starts: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    *rest: Any,
) -> None:
    bgmv_expand(inputs, weights, output, slots.repeat_interleave(lengths), rest[-1])


def sgmv_expand_slice(
    inputs: torch.Tensor,
    weights: torch.Tensor,
    output: torch.Tensor,
    _starts: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    *rest: Any,
) -> None:
    bgmv_expand_slice(inputs, weights, output, slots.repeat_interleave(lengths), *rest[-3:])


def _groups(slots: torch.Tensor) -> Iterator[tuple[int, Any]]:
    """Each adapter's slot and its rows; all of them, where there is one adapter."""
    used = slots.unique().tolist()
    for slot in used:
        if slot >= 0:
            yield slot, slice(None) if len(used) == 1 else slots == slot


def _product(
    inputs: torch.Tensor, rows: Any, weights: torch.Tensor, output: torch.Tensor
) -> torch.Tensor:
    matrix = weights.squeeze(0) if weights.dim() == 3 else weights
    return inputs[rows].to(output.dtype) @ matrix.to(output.dtype).T

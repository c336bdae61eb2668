"""Items of one element type as those of another: what torch makes of them, and never infinite."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.blocks import Element
from common.kv.compression.elements import converted

TORCH: dict[Element, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
INTEGER = {4: torch.int32, 2: torch.int16}


def bits_of(values: torch.Tensor) -> np.ndarray:
    array: np.ndarray = values.view(INTEGER[values.itemsize]).numpy()
    return array.view(np.uint32 if values.itemsize == 4 else np.uint16)


@pytest.mark.parametrize("own", list(TORCH))
@pytest.mark.parametrize("wanted", list(TORCH))
def test_they_are_what_torch_makes_of_them(own: Element, wanted: Element) -> None:
    """Ties, subnormals, zeros of both signs, and every number of 16 bits that is one."""
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    ties = (every.int() << 16 | 0x8000).view(torch.float32)
    values = torch.cat(
        (every.view(torch.bfloat16).float(), every.view(torch.float16).float(), ties)
    )
    values = values[values.isfinite()].to(TORCH[own])
    values = values[values.isfinite()]
    limit = torch.finfo(torch.float16).max if wanted == "float16" else float("inf")
    due = values.float().clamp(-limit, limit).to(TORCH[wanted])
    assert (converted(bits_of(values), own, wanted) == bits_of(due)).all()


@pytest.mark.parametrize("wanted", list(TORCH))
def test_nan_stays_nan_and_only_float16_bounds_infinities(wanted: Element) -> None:
    values = torch.tensor([float("nan"), -float("inf"), 1e30])
    bits = bits_of(values)
    bits[0] = 0xFFFFFFFF  # a NaN that rounding would make a zero of
    found = torch.from_numpy(converted(bits, "float32", wanted).copy()).view(TORCH[wanted])
    assert found.isnan().tolist() == [True, False, False]
    assert found.isinf().tolist() == [False, wanted != "float16", False]

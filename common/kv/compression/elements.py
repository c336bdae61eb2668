"""Between the element types of KV, with numpy.

bfloat16, which numpy lacks, is the upper half of float32: it is kept as its bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from common.blocks import Element

Floats = NDArray[np.float32]

STORED = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.float16}
"""The numpy type in which items are kept."""
FLOAT16_MAX = 65504.0


def widened(raw: NDArray[np.generic], element: Element) -> Floats:
    """Without a copy where they are float32 already."""
    if element == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32, copy=False)


def narrow(values: Floats, element: Element, out: NDArray[np.generic]) -> None:
    """To the nearest, ties to even. `values` may be overwritten. A NaN must be the quiet one."""
    if element == "bfloat16":
        bits = values.view(np.uint32)
        odd = bits >> 16
        odd &= 1
        odd += 0x7FFF
        bits += odd
        bits >>= 16
        out[...] = bits
    else:
        out[...] = values


def converted(
    items: NDArray[np.generic], own: Element, wanted: Element
) -> NDArray[np.unsignedinteger]:
    """The bits of the nearest items of another type. What is too large for float16 becomes its
    largest, infinities too; NaN stays NaN."""
    values = widened(items.view(STORED[own]), own)
    if wanted == "float32":
        return values.view(np.uint32)
    values = values.copy()
    values[np.isnan(values)] = np.nan
    if wanted == "float16":
        np.clip(values, -FLOAT16_MAX, FLOAT16_MAX, out=values)
    out = np.empty(values.shape, STORED[wanted])
    narrow(values, wanted, out)
    return out.view(np.uint16)

"""KV as fp8 on the wire: one float32 scale for each head's K and V of a page, values as e4m3.

Theory of operation: values that share a scale are divided by it, so that the largest becomes 448,
e4m3's largest. e4m3 is float32 with the exponent's bias moved by 120 and the mantissa cut to three
bits, so a product with 2^-120 and a rounding shift (to nearest, ties to even) of the bits encode
it, subnormals too; a table of 256 decodes it. A value comes back within 1/16 of itself or, near
zero, 1/400,000 of its group's largest; infinities become that largest, NaN stays NaN.
On the wire come the scales of all pages, then the values of all pages, in the pages' own order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.blocks import ELEMENT_BYTES, Element
from common.kv.compression.elements import STORED, Floats, narrow, widened

Bytes = NDArray[np.uint8]

LARGEST = 448.0
NAN_CODE = 0x7F
CHUNK_ITEMS = 1 << 16
_REBIAS = np.float32(2.0**-120)
_SCALE_BYTES = 4
_SCALE_MIN = np.finfo(np.float32).tiny


@dataclass(frozen=True, slots=True)
class PageFormat:
    """What a page holds. A wrong guess of the heads costs precision, never correctness."""

    element: Element
    axes: tuple[int, ...]
    """The length of each axis, outermost first."""
    shared: tuple[int, ...]
    """Values that differ only along these axes have one scale."""

    @property
    def items(self) -> int:
        return math.prod(self.axes)

    @property
    def page_bytes(self) -> int:
        return self.items * ELEMENT_BYTES[self.element]

    @property
    def scales(self) -> int:
        """The number of scales of one page."""
        return math.prod(n for axis, n in enumerate(self.axes) if axis not in self.shared)

    @property
    def fp8_page_bytes(self) -> int:
        """The size of an encoded page; 0 if groups are so small that nothing is saved."""
        encoded = self.items + self.scales * _SCALE_BYTES
        return encoded if encoded < self.page_bytes else 0


class Fp8Codec:
    """Whole pages to fp8 and back, on the calling thread."""

    def __init__(self, what: PageFormat) -> None:
        self._format = what
        self._shared = tuple(axis + 1 for axis in what.shared)
        self._chunk = max(1, CHUNK_ITEMS // what.items)

    def encode(self, pages: Bytes, out: Bytes) -> None:
        """`pages`: contiguous; `out`: `fp8_page_bytes` for each. Raises ValueError otherwise."""
        count = self._count(pages, out)
        scales, codes = self._parts(out, count)
        raw = pages.view(STORED[self._format.element]).reshape(count, *self._format.axes)
        for at in range(0, count, self._chunk):
            run = slice(at, at + self._chunk)
            _encode(widened(raw[run], self._format.element), self._shared, scales[run], codes[run])

    def decode(self, encoded: Bytes, pages: Bytes) -> None:
        """The reverse; every byte string of the right size decodes to something."""
        count = self._count(pages, encoded)
        scales, codes = self._parts(encoded, count)
        raw = pages.view(STORED[self._format.element]).reshape(count, *self._format.axes)
        for at in range(0, count, self._chunk):
            run = slice(at, at + self._chunk)
            values = np.take(_DECODED, codes[run], mode="clip")
            with np.errstate(all="ignore"):
                values *= scales[run]
                narrow(values, self._format.element, raw[run])

    def _count(self, pages: Bytes, encoded: Bytes) -> int:
        what = self._format
        count, rest = divmod(pages.nbytes, what.page_bytes)
        if rest or encoded.nbytes != count * what.fp8_page_bytes:
            raise ValueError(f"{pages.nbytes} bytes of pages, {encoded.nbytes} of fp8: {what}")
        return count

    def _parts(self, encoded: Bytes, count: int) -> tuple[Floats, Bytes]:
        what = self._format
        kept = [1 if axis in what.shared else n for axis, n in enumerate(what.axes)]
        cut = count * what.scales * _SCALE_BYTES
        scales = encoded[:cut].view(np.float32).reshape(count, *kept)
        return scales, encoded[cut:].reshape(count, *what.axes)


def measure_rate(codec: Fp8Codec, what: PageFormat, clock: Callable[[], float]) -> float:
    """Bytes of KV a second through encode and then decode, on this thread: about 10 ms."""
    count = max(1, (1 << 21) // what.page_bytes)
    values = np.random.default_rng(0).standard_normal(count * what.items, np.float32)
    pages = np.empty(count * what.page_bytes, np.uint8)
    narrow(values, what.element, pages.view(STORED[what.element]))
    encoded = np.zeros(count * what.fp8_page_bytes, np.uint8)
    best = math.inf
    for _ in range(2):
        start = clock()
        codec.encode(pages, encoded)
        codec.decode(encoded, pages)
        best = min(best, clock() - start)
    return pages.nbytes / max(best, 1e-9)


def _encode(values: Floats, shared: tuple[int, ...], scales: Floats, codes: Bytes) -> None:
    """`scales` and `codes` are written."""
    largest = np.maximum(values.max(shared, keepdims=True), -values.min(shared, keepdims=True))
    finite = bool(np.isfinite(largest).all())
    if not finite:
        sizes = np.where(np.isfinite(values), np.abs(values), np.float32(0))
        largest = sizes.max(shared, keepdims=True)
    np.divide(largest, np.float32(LARGEST), out=scales)
    np.maximum(scales, _SCALE_MIN, out=scales)
    scales[largest == 0] = 1
    with np.errstate(all="ignore"):
        scaled = values * (1 / scales)
        if not finite:
            np.clip(scaled, -LARGEST, LARGEST, out=scaled)
        scaled *= _REBIAS
    bits = scaled.view(np.uint32)
    odd = bits >> 20
    odd &= 1
    odd += 0x7FFFF
    bits += odd
    bits >>= 20
    np.right_shift(bits, 4, out=odd)
    odd &= 0x80
    bits |= odd
    codes[...] = bits.astype(np.uint8)
    if not finite:
        codes[np.isnan(values)] = NAN_CODE


def _table() -> Floats:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    normal = (8 + mantissa) * 2.0 ** (exponent - 10)
    sizes = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    sizes[(codes & 0x7F) == NAN_CODE] = np.nan
    return np.where(codes & 0x80, -sizes, sizes).astype(np.float32)


_DECODED = _table()

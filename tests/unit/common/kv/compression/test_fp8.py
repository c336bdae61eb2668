"""fp8 on the wire: bounded error for each element type, and nothing but it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.blocks import Element
from common.kv.compression.fp8 import LARGEST, Fp8Codec, PageFormat

ELEMENTS: list[Element] = ["float32", "bfloat16", "float16"]
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHAPES = [((2, 2, 96), (2,)), ((3, 5, 2, 8), (1, 3)), ((5, 3, 2, 8), (0, 3)), ((1, 2, 7), (2,))]


def raw(values: torch.Tensor) -> np.ndarray:
    return np.frombuffer(values.contiguous().view(torch.uint8).numpy().tobytes(), np.uint8)


def through(what: PageFormat, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What comes back, and the scales, both in the shape of the pages."""
    codec, count = Fp8Codec(what), values.shape[0]
    encoded = np.empty(count * what.fp8_page_bytes, np.uint8)
    codec.encode(raw(values), encoded)
    back = np.empty(count * what.page_bytes, np.uint8)
    codec.decode(encoded, back)
    kept = [1 if axis in what.shared else n for axis, n in enumerate(what.axes)]
    cut = count * what.scales * 4
    scales = torch.from_numpy(encoded[:cut].view(np.float32).copy()).reshape(count, *kept)
    return torch.from_numpy(back).view(TORCH[what.element]).reshape(values.shape), scales


@pytest.mark.parametrize(("axes", "shared"), SHAPES)
@pytest.mark.parametrize("element", ELEMENTS)
def test_values_come_back_within_a_sixteenth(
    element: Element, axes: tuple[int, ...], shared: tuple[int, ...]
) -> None:
    what = PageFormat(element, axes, shared)
    torch.manual_seed(1)
    spread = 10.0 ** torch.randint(-3, 3, (9, *axes))
    values = (torch.randn(9, *axes) * spread).to(TORCH[element])
    back, scales = through(what, values)
    error = (back.float() - values.float()).abs()
    rounding = 2.0**-8 if element == "bfloat16" else 2.0**-11
    bound = values.float().abs() * (1 / 16 + 2 * rounding) + scales * 2.0**-9
    assert (error <= bound).all()
    assert error.max() > 0
    largest = values.float().abs().amax([axis + 1 for axis in shared], keepdim=True)
    assert torch.allclose(scales * LARGEST, largest, rtol=1e-6), "one scale for each group"


def test_codes_are_those_of_torch() -> None:
    """An independent e4m3: round to nearest, ties to even, subnormals."""
    what = PageFormat("float32", (1, 512), (1,))
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    known = codes[~codes.isnan()]
    between = (known.sort().values[1:] + known.sort().values[:-1]) / 2
    values = torch.cat([known, between, torch.tensor([448.0, 300.0, -448.0])])[:509]
    values = torch.cat([values, torch.tensor([448.0] * 3)]).reshape(1, 1, 512)
    encoded = np.empty(what.fp8_page_bytes, np.uint8)
    Fp8Codec(what).encode(raw(values), encoded)
    expected = values.to(torch.float8_e4m3fn).view(torch.uint8).numpy().reshape(-1)
    assert np.array_equal(encoded[4:], expected)


@pytest.mark.parametrize("element", ELEMENTS)
def test_zero_pages_stay_zero(element: Element) -> None:
    values = torch.zeros(3, 2, 2, 64, dtype=TORCH[element])
    values[1, 0, 0] = 5.0
    back, _ = through(PageFormat(element, (2, 2, 64), (2,)), values)
    assert torch.equal(back, values)


@pytest.mark.parametrize("element", ELEMENTS)
def test_infinities_saturate_and_nan_stays_in_its_place(element: Element) -> None:
    values = torch.ones(2, 2, 2, 64, dtype=TORCH[element])
    values[0, 0, 0, :3] = torch.tensor([float("inf"), float("-inf"), float("nan")])
    values[0, 1, 1] = float("inf")
    back, _ = through(PageFormat(element, (2, 2, 64), (2,)), values)
    assert back[0, 0, 0, :2].tolist() == [1.0, -1.0], "the largest finite of the group"
    assert back[0, 0, 0, 2].isnan()
    assert back.isnan().sum() == 1
    assert (back[0, 1, 1] == LARGEST).all(), "a group with no finite value"
    assert (back[1] == 1).all()


def test_extreme_sizes_neither_overflow_nor_divide_by_zero() -> None:
    values = torch.full((1, 4, 64), 3e38)
    values[0, 1], values[0, 2], values[0, 3] = 1e-44, 1e-30, 65504.0
    back, _ = through(PageFormat("float32", (4, 64), (1,)), values)
    assert torch.allclose(back[0, [0, 2, 3]], values[0, [0, 2, 3]], rtol=1e-5)
    assert back[0, 1].abs().max() < 1e-37


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=256, max_size=256), st.sampled_from(ELEMENTS))
def test_any_bytes_can_be_encoded_and_decoded(data: bytes, element: Element) -> None:
    items = 256 if element == "float32" else 512
    what = PageFormat(element, (4, items // 16), (1,))
    pages = np.tile(np.frombuffer(data, np.uint8), 4)
    encoded = np.empty(4 * 256 // what.page_bytes * what.fp8_page_bytes, np.uint8)
    Fp8Codec(what).encode(pages, encoded)
    back = np.empty_like(pages)
    Fp8Codec(what).decode(encoded, back)
    again = np.empty_like(encoded)
    Fp8Codec(what).encode(back, again)
    Fp8Codec(what).decode(again, pages)
    nan = np.float32 if element == "float32" else np.float16
    if element != "bfloat16":
        assert np.array_equal(np.isnan(pages.view(nan)), np.isnan(back.view(nan)))


def test_wrong_sizes_are_refused() -> None:
    what = PageFormat("float16", (2, 64), (1,))
    pages, encoded = np.zeros(2 * 256, np.uint8), np.zeros(2 * what.fp8_page_bytes, np.uint8)
    for bad in ((pages[:-1], encoded), (pages, encoded[:-1]), (pages[:256], encoded)):
        with pytest.raises(ValueError, match="pages"):
            Fp8Codec(what).encode(*bad)
        with pytest.raises(ValueError, match="pages"):
            Fp8Codec(what).decode(*reversed(bad))


def test_groups_too_small_to_save_anything_are_not_compressed() -> None:
    assert PageFormat("float16", (64, 4), (1,)).fp8_page_bytes == 0
    assert PageFormat("float16", (64, 8), (1,)).fp8_page_bytes == 64 * 12
    assert PageFormat("float32", (2, 2, 4096), (2,)).fp8_page_bytes == 4 * 4096 + 16

"""Other weights of the same names and sizes have other marks, however little of them differs."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from common.model.embedded import ensure_embedded_model
from common.model.weight_digest import weight_marks
from common.model.weights import Recipe, build_weights

TENSORS = sorted(build_weights(Recipe(layers=2)))
WHOLE_BYTES = 8 << 10
"""A tensor of this size is read wholly."""
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_embedded_model(tmp_path_factory.mktemp("cache"), Recipe(layers=2))


def with_header(header: str, length: int) -> bytes:
    """A file whose header says one place of a tensor, or anything."""
    entry = f'{{"a": {{"data_offsets": [0, {length}]}}, "{header}": {{}}}}'.encode()
    return min(length, len(entry)).to_bytes(8, "little") + entry


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("place", [0, -1, slice(None)])
def test_one_tensor_that_differs_is_seen(
    model: Path, tmp_path: Path, name: str, place: int | slice
) -> None:
    """Whether the first row of it, the last, or all of it."""
    tensors = load_file(model / FILE)
    tensors[name][place] += np.float32(1.5)
    other = shutil.copytree(model, tmp_path / "other")
    save_file(tensors, other / FILE, metadata={"format": "pt"})
    assert (other / FILE).stat().st_size == (model / FILE).stat().st_size
    assert weight_marks(other) != weight_marks(model)


@settings(max_examples=30)
@given(st.lists(st.integers(1, WHOLE_BYTES), min_size=1, max_size=4), st.integers(0))
def test_any_byte_of_a_small_tensor_is_seen(sizes: list[int], place: int) -> None:
    """Between two large ones, which put it where no spread stretch need be."""
    large = {name: np.zeros(1_000_001, np.uint8) for name in ("a", "z")}
    data = np.zeros(sum(sizes), np.uint8)
    parts = np.split(data, np.cumsum(sizes)[:-1])
    tensors = large | {f"t{number}": part for number, part in enumerate(parts)}
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / FILE)
        before = weight_marks(Path(folder))
        data[place % data.size] = 1
        save_file(tensors, Path(folder) / FILE)
        assert weight_marks(Path(folder)) != before


def test_two_tensors_that_changed_places_are_seen(tmp_path: Path) -> None:
    """Only the header tells, and its end is far from its start."""
    names = [f"model.layers.{number}.self_attn.q_proj.weight" for number in range(500)]
    tensors = {name: np.full(4, number, np.uint16) for number, name in enumerate(names)}
    tensors["a"] = np.zeros(8_000_000, np.uint16)
    save_file(tensors, tmp_path / FILE)
    marks, data = weight_marks(tmp_path), (tmp_path / FILE).read_bytes()
    one, other = (name.encode() for name in sorted(names)[250:252])
    swapped = data.replace(one, b"<one>").replace(other, one).replace(b"<one>", other)
    (tmp_path / FILE).write_bytes(swapped)
    assert len(swapped) == len(data)
    assert weight_marks(tmp_path) != marks


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_a_tensor_in_a_file_of_torch_is_seen(tmp_path: Path, name: str) -> None:
    """As torch writes it: a ZIP archive that compresses nothing."""

    def marks_with(middle: bytes) -> list[str]:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for number, data in enumerate((bytes(3_000_001), middle, bytes(3_000_001))):
                entry = zipfile.ZipInfo(f"archive/data/{number}")
                archive.writestr(entry, data)
            for number in range(500):  # its directory is longer than the last stretch
                archive.writestr(zipfile.ZipInfo(f"archive/data/small_{number:0>40}"), b"")
        return weight_marks(tmp_path)

    assert marks_with(bytes(64)) != marks_with(bytes(63) + b"1")


def test_a_copy_and_links_into_a_cache_have_the_same_marks(model: Path, tmp_path: Path) -> None:
    renamed = shutil.copytree(model, tmp_path / "renamed")
    (renamed / "optimizer.pt").write_bytes(b"of the training, and no weights")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / FILE).symlink_to(model / FILE)
    assert weight_marks(renamed) == weight_marks(model)
    assert weight_marks(tmp_path / "snapshot") == weight_marks(model)


@given(st.one_of(st.binary(), st.builds(with_header, st.text(), st.integers(0, 2**64 - 1))))
def test_a_damaged_file_has_marks_too(data: bytes) -> None:
    """vLLM's loader says what is wrong with it, and the check before it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (FILE, "model.bin"):
            (Path(folder) / name).write_bytes(data)
        assert len(weight_marks(Path(folder))) == 2

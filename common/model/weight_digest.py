"""What tells the weights of one model from those of another of the same shape, in little reading.

A finetuned model may differ from its base in one tensor alone, and that one may be as small as a
norm. So stretches spread over a file are not enough: what is read lies around every border between
two tensors, and spread over the file besides. A file of torch keeps a checksum of each tensor in
its directory, which is read in their place. A file that is neither, or is damaged, has the spread
stretches only.

Not seen is a change inside one large tensor that touches neither its ends nor a spread stretch.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from common.model.checkpoint import NOT_WEIGHTS

SAMPLES: Final = 64
SAMPLE_BYTES: Final = 8 << 10
SUFFIXES: Final = (".safetensors", ".bin", ".pt")
LENGTH_BYTES: Final = 8
HEADER_BYTES_MAX: Final = 100_000_000
"""What safetensors itself allows."""


class _Tensor(msgspec.Struct):
    """An entry of the header of a safetensors file; its data lies between these two places, counted
    in bytes from the header's end."""

    data_offsets: tuple[int, int]


def weight_marks(folder: Path) -> list[str]:
    """`NAME:BYTES:DIGEST` of each file of weights, in the order of the names. Raises OSError."""
    files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    return [_mark(file) for file in files if file.name not in NOT_WEIGHTS]


def _mark(file: Path) -> str:
    size, digest = file.stat().st_size, hashlib.sha256()
    spread = [max(0, size - SAMPLE_BYTES) * n // (SAMPLES - 1) for n in range(SAMPLES)]
    stretches = [(place, place + SAMPLE_BYTES) for place in spread]
    with file.open("rb") as stream:
        if file.suffix == ".safetensors":
            stretches += _header_and_borders(stream)
        else:
            digest.update(_checksums(stream))
        for start, end in _joined(stretches):
            stream.seek(start)
            digest.update(stream.read(end - start))
    return f"{file.name}:{size}:{digest.hexdigest()[:16]}"


def _header_and_borders(stream: BinaryIO) -> list[tuple[int, int]]:
    """The header, which says which tensor lies where, and around each end of a tensor
    `SAMPLE_BYTES`, of which half lie on each side. None if the header cannot be read."""
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    if length > HEADER_BYTES_MAX:
        return []
    try:
        entries = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        tensors = [msgspec.json.decode(entry, type=_Tensor) for entry in entries.values()]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    data, half = LENGTH_BYTES + length, SAMPLE_BYTES // 2
    ends = {data + place for tensor in tensors for place in tensor.data_offsets}
    return [(0, data), *((max(0, end - half), max(0, end + half)) for end in ends)]


def _joined(stretches: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those that touch or overlap as one, in ascending order: a disk then reads forward only."""
    start, end = 0, 0
    for next_start, next_end in sorted(stretches):
        if next_start > end:
            yield start, end
            start = next_start
        end = max(end, next_end)
    yield start, end


def _checksums(stream: BinaryIO) -> bytes:
    """Of each tensor in a file of torch, by name; empty for one that torch wrote before 1.6."""
    try:
        with zipfile.ZipFile(stream) as archive:
            return repr([(one.filename, one.CRC) for one in archive.infolist()]).encode()
    except zipfile.BadZipFile:
        return b""

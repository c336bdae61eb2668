"""Blocks in files come back as they were, or are not served."""

from __future__ import annotations

import itertools
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from common.kv.layout import Geometry, HostMemory
from common.kv.store import record as record_format
from common.kv.store import segments as module
from common.kv.store.arena import Arena
from common.kv.store.record import (
    HEADER_BYTES,
    USED_AT_OFFSET,
    Record,
    decode,
    encode,
    record_bytes,
    record_key,
)
from common.kv.store.segments import Segments
from common.kv.store.table import BlockCopy, BlockName, Medium
from tests.rigs import arenas

LAYERS, BLOCKS, PAGE = 2, 16, 1024
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
SLOTS = 8
KEY = record_key("fingerprint", 2048, 0)
RECORD = record_bytes(GEOMETRY.block_bytes)
DAMAGED = 10_000


class Rig:
    """An engine's memory, an arena, and segments of two files."""

    def __init__(self, folder: Path) -> None:
        base = np.random.default_rng(5).integers(0, 256, GEOMETRY.end, dtype=np.uint8)
        self.memory = HostMemory(base, GEOMETRY)
        self.arena = Arena(self.memory, SLOTS)
        self.folder = folder
        self.segments = self.open()

    def open(self, key: bytes = KEY, slots: int = SLOTS) -> Segments:
        made = Segments(self.folder, key, GEOMETRY.block_bytes, slots)
        assert made.open()
        return made

    def put(self, slot: int, block: int, *, used_at: float = 1.0) -> BlockName:
        """Writes this block of the engine to this slot by way of the arena."""
        name = BlockName(0, bytes([block]) * 32)
        arenas.write(self.arena, BlockCopy(slot, block, name))
        data = np.empty(GEOMETRY.block_bytes, np.uint8)
        digest = self.arena.copy_out(slot, name, data)
        assert digest is not None
        self.segments.write(slot, Record(name, digest, used_at), data)
        return name

    def get(self, slot: int, name: BlockName) -> bytes | None:
        """What the engine's last block holds, if the slot was judged to hold this block."""
        data = np.empty(GEOMETRY.block_bytes, np.uint8)
        record = self.segments.read(slot, data)
        copy = BlockCopy(slot, BLOCKS - 1, name, Medium.DISK)
        return self.block(BLOCKS - 1) if arenas.place(self.arena, copy, data, record) else None

    def block(self, number: int) -> bytes:
        return b"".join(self.memory.page(layer, number).tobytes() for layer in range(LAYERS))

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.kv"))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 6 * RECORD)
    rig = Rig(tmp_path / "d0.0")
    yield rig
    rig.segments.close()


def test_blocks_come_back_and_are_found_by_the_next_process(rig: Rig) -> None:
    names = {slot: rig.put(slot, slot + 2, used_at=slot + 0.5) for slot in (0, 5, 6)}
    rig.segments.close()
    rig.segments = rig.open()
    assert {at: record.name for at, record in rig.segments.scan()} == names
    assert [record.used_at for _, record in rig.segments.scan()] == [0.5, 5.5, 6.5]
    for slot, name in names.items():
        assert rig.get(slot, name) == rig.block(slot + 2)
    assert rig.get(1, names[0]) is None, "nothing was written there"


def test_files_are_bounded_allocated_in_full_and_closed_to_others(rig: Rig) -> None:
    rig.put(0, 2)
    assert [path.stat().st_size for path in rig.files()] == [6 * RECORD]
    rig.put(7, 2)
    assert [path.stat().st_size for path in rig.files()] == [6 * RECORD, 2 * RECORD]
    assert all(path.stat().st_blocks * 512 >= path.stat().st_size for path in rig.files())
    assert {stat.S_IMODE(path.stat().st_mode) for path in rig.files()} == {0o600}
    assert stat.S_IMODE(rig.folder.stat().st_mode) == 0o750
    for path in rig.folder.iterdir():
        assert bytes([2] * 32).hex() not in path.name


def test_what_another_engine_wrote_is_removed(rig: Rig) -> None:
    rig.put(0, 2)
    rig.segments.close()
    (rig.folder / "notes.txt").write_text("not ours to judge")
    rig.segments = rig.open(record_key("fingerprint", 2048, 1))
    assert rig.files() == []
    assert list(rig.segments.scan()) == []
    assert (rig.folder / "notes.txt").exists()


def test_a_smaller_bound_gives_the_room_back(rig: Rig) -> None:
    kept, _, _ = rig.put(0, 2), rig.put(4, 3), rig.put(7, 4)
    rig.segments.close()
    rig.segments = rig.open(slots=3)
    rig.put(1, 5)
    assert [path.stat().st_size for path in rig.files()] == [3 * RECORD]
    assert rig.get(0, kept) == rig.block(2)
    assert [at for at, _ in rig.segments.scan()] == [0, 1]


def test_one_process_at_a_time_has_the_folder(rig: Rig) -> None:
    other = Segments(rig.folder, KEY, GEOMETRY.block_bytes, SLOTS)
    assert not other.open()
    rig.segments.close()
    assert other.open()
    other.close()


def test_a_use_is_told_to_the_next_process_and_changes_nothing_else(rig: Rig) -> None:
    name = rig.put(3, 4)
    rig.segments.mark_used(3, 77.25)
    ((at, record),) = rig.segments.scan()
    assert (at, record.name, record.used_at) == (3, name, 77.25)
    assert rig.get(3, name) == rig.block(4)


def test_a_link_in_place_of_a_file_is_not_followed(rig: Rig, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep")
    rig.segments.close()
    rig.segments = rig.open()
    (rig.folder / f"{KEY.hex()}-00000.kv").symlink_to(victim)
    with pytest.raises(PermissionError, match="symbolic link"):
        rig.put(0, 2)
    assert victim.read_bytes() == b"keep"


def test_a_folder_that_others_may_change_is_refused(rig: Rig) -> None:
    rig.segments.close()
    rig.folder.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 0750"):
        rig.open()


def test_a_record_of_another_format_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_format, "MAGIC", b"BatonKV\x03")
    header = encode(KEY, Record(BlockName(0, b"h" * 32), b"d" * 16, 0.0))
    monkeypatch.undo()
    assert decode(KEY, header) is None


def test_a_header_is_judged_by_itself() -> None:
    record = Record(BlockName(3, b"h" * 32), b"d" * 16, 12.5)
    header = encode(KEY, record)
    assert len(header) == HEADER_BYTES
    assert decode(KEY, header) == record
    assert decode(record_key("other", 2048, 0), header) is None
    assert decode(KEY, header[:-1]) is None
    for at in range(USED_AT_OFFSET):
        flipped = bytearray(header)
        flipped[at] ^= 4
        assert decode(KEY, bytes(flipped)) is None, at
    with pytest.raises(ValueError, match="65 bytes"):
        encode(KEY, Record(BlockName(0, b"h" * 65), b"d" * 16, 0.0))


class Damage:
    """Makes something else of a good record, and of another good one, `stale`."""

    def __init__(self, whole: bytes, stale: bytes, seed: int) -> None:
        self.whole, self.stale = whole, stale
        self.draw = random.Random(seed)
        self.used = HEADER_BYTES + GEOMETRY.block_bytes
        record = decode(KEY, whole[:HEADER_BYTES])
        assert record is not None
        self.foreign_header = encode(record_key("other", 2048, 0), record)

    def flipped(self) -> bytes:
        """Not in the time of the last use, which nothing is judged by."""
        bad, bits = bytearray(self.whole), self.draw.choice((1, 1, 2, 40))
        while bits:
            at = self.draw.randrange(self.used)
            if not USED_AT_OFFSET <= at < HEADER_BYTES:
                bad[at] ^= 1 << self.draw.randrange(8)
                bits -= 1
        return bytes(bad)

    def torn(self) -> bytes:
        """A write that replaced another block stopped half-way."""
        draw, whole, stale = self.draw, self.whole, self.stale
        at = draw.choice((HEADER_BYTES, draw.randrange(1, self.used), 512 * draw.randrange(1, 4)))
        return draw.choice((whole[:at] + stale[at:], stale[:at] + whole[at:]))

    def misplaced(self) -> bytes:
        shift, data = self.draw.randrange(1, 2048), self.whole[HEADER_BYTES : self.used]
        return self.whole[:HEADER_BYTES] + data[shift:] + data[:shift]

    def zeroed(self) -> bytes:
        at = self.draw.randrange(self.used - 8)
        return self.whole[:at] + bytes(RECORD - at)

    def cut(self) -> bytes:
        return self.whole[: self.draw.randrange(self.used)]

    def replaced(self) -> bytes:
        """The block that was there before is still there."""
        return self.stale

    def foreign(self) -> bytes:
        return self.foreign_header + self.whole[HEADER_BYTES:]

    @property
    def kinds(self) -> list[Callable[[], bytes]]:
        return [
            self.flipped,
            self.torn,
            self.misplaced,
            self.zeroed,
            self.cut,
            self.replaced,
            self.foreign,
        ]


def test_ten_thousand_damaged_blocks_are_refused(rig: Rig) -> None:
    """Every tenth time the undamaged block is asked for, too, or refusals would prove nothing."""
    rig.segments.close()
    rig.segments = rig.open(slots=2)
    name, _ = rig.put(0, 2), rig.put(1, 3)
    (path,) = rig.files()
    good = path.read_bytes()
    damage = Damage(good[:RECORD], good[RECORD:], seed=21)
    file = os.open(path, os.O_RDWR)
    refused = 0
    for make in itertools.cycle(damage.kinds):
        bad = make()
        if bad == damage.whole:
            continue
        os.ftruncate(file, len(bad))
        os.pwrite(file, bad, 0)
        assert rig.get(0, name) is None, make.__name__
        os.pwrite(file, good, 0)
        refused += 1
        if refused % 10 == 0:
            assert rig.get(0, name) == rig.block(2)
        if refused == DAMAGED:
            break
    os.close(file)

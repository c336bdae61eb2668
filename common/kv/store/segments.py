"""The segment files of one rank: slots of equal size, in files that are made as they are needed.

Theory of operation: the name of a file says for whom its records are (`record.py`) and its number;
nothing of a prompt is in it. What is in the folder for somebody else, or beyond the bound, is
removed when the files are opened. Nothing is synchronized to the disk: a killed process loses
nothing that was written, and after a power cut the digests tell what is whole. Files are allocated
in full, so that a full disk is found when a file is made and not in the middle of it. With a
secret, what is written is sealed (`sealing.py`): the header up to the time of the last use, and the
block.

All methods may block, and raise OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from common.kv.checksum.definition import Bytes
from common.kv.store.record import (
    HEADER_BYTES,
    USED_AT,
    USED_AT_OFFSET,
    Record,
    decode,
    encode,
    record_bytes,
)
from common.kv.store.sealing import SEAL_BYTES, Sealing
from common.process.owned_files import open_own, open_private, own_folder

SEGMENT_BYTES = 1 << 30
SUFFIX = ".kv"
LOCK = "lock"


class Segments:
    """`slots` records of blocks of `block_bytes`, in one folder."""

    def __init__(
        self, folder: Path, key: bytes, block_bytes: int, slots: int, secret: bytes = b""
    ) -> None:
        """`secret`: by which records are sealed; empty: they are not."""
        self.block_bytes = block_bytes
        self.slots = slots
        self._folder = folder
        self._key = key
        self._sealing = Sealing(secret, key) if secret else None
        self._header_bytes = HEADER_BYTES + (SEAL_BYTES if secret else 0)
        self._record_bytes = record_bytes(block_bytes)
        self._per_segment = max(1, SEGMENT_BYTES // self._record_bytes)
        self._files: dict[int, int] = {}
        self._lock: IO[Any] | None = None

    @property
    def folder(self) -> Path:
        return self._folder

    def open(self) -> bool:
        """Makes the folder and removes what is not ours in it. False if another process has it, as
        the one before this does until it has ended."""
        own_folder(self._folder)
        lock = self._lock = open_own(self._folder / LOCK, "a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            self._lock = None
            return False
        wanted = {self._path(number).name for number in range(self._count())}
        for path in self._folder.iterdir():
            if path.suffix == SUFFIX and path.name not in wanted:
                path.unlink()
        return True

    def close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):
                os.close(file)
        self._files.clear()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write(self, slot: int, record: Record, data: Bytes) -> None:
        """`data`: the bytes of the block."""
        file, at = self._place(slot)
        header = self._sealed(encode(self._key, record))
        block = self._sealing.seal_block(data) if self._sealing is not None else data
        parts = [memoryview(header), block.data]
        while parts:
            written = os.pwritev(file, parts, at)
            at += written
            while parts and written >= parts[0].nbytes:
                written -= parts.pop(0).nbytes
            if parts:
                parts[0] = parts[0][written:]

    def mark_used(self, slot: int, used_at: float) -> None:
        file, at = self._place(slot)
        os.pwrite(file, USED_AT.pack(used_at), at + self._header_bytes - USED_AT.size)

    def read(self, slot: int, out: Bytes) -> Record | None:
        """Fills `out` with the bytes of a block, which the caller judges by the record's digest.
        None if there is no whole record of ours."""
        file, at = self._place(slot)
        header = bytearray(self._header_bytes)
        block = self._sealing.buffer(out.nbytes) if self._sealing is not None else out
        parts = [memoryview(header), block.data]
        while parts:
            read = os.preadv(file, parts, at)
            if read == 0:
                return None
            at += read
            while parts and read >= parts[0].nbytes:
                read -= parts.pop(0).nbytes
            if parts:
                parts[0] = parts[0][read:]
        record = self._record(bytes(header))
        if record is not None and self._sealing is not None:
            return record if self._sealing.open_block(block, out) else None
        return record

    def scan(self) -> Iterator[tuple[int, Record]]:
        """What the headers say is in the slots, without a look at the blocks. It changes nothing,
        and also works for who has not opened the segments."""
        for number in range(self._count()):
            try:
                file = os.open(self._path(number), os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            try:
                yield from self._scan(file, number)
            finally:
                os.close(file)

    def _scan(self, file: int, number: int) -> Iterator[tuple[int, Record]]:
        first = number * self._per_segment
        for at in range(min(self._per_segment, self.slots - first)):
            record = self._record(os.pread(file, self._header_bytes, at * self._record_bytes))
            if record is not None:
                yield first + at, record

    def _sealed(self, header: bytes) -> bytes:
        if self._sealing is None:
            return header
        return self._sealing.seal(header[:USED_AT_OFFSET]) + header[USED_AT_OFFSET:]

    def _record(self, header: bytes) -> Record | None:
        """What this header says, if it is a whole one of ours."""
        if self._sealing is None:
            return decode(self._key, header)
        opened = self._sealing.open(header[: -USED_AT.size])
        return decode(self._key, opened + header[-USED_AT.size :]) if opened is not None else None

    def _count(self) -> int:
        return -(-self.slots // self._per_segment)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._key.hex()}-{number:05}{SUFFIX}"

    def _place(self, slot: int) -> tuple[int, int]:
        number, at = divmod(slot, self._per_segment)
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = self._make(number)
        return file, at * self._record_bytes

    def _make(self, number: int) -> int:
        file = open_private(self._path(number))
        slots = min(self._per_segment, self.slots - number * self._per_segment)
        try:
            os.ftruncate(file, min(os.fstat(file).st_size, slots * self._record_bytes))
            os.posix_fallocate(file, 0, slots * self._record_bytes)
        except OSError:
            os.close(file)
            raise
        return file

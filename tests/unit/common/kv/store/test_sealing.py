"""What is sealed is not to be read or changed, and the key is the daemons' user's alone."""

from __future__ import annotations

import itertools
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common.config import StoreConfig
from common.errors import BatonError, Code
from common.kv.store import segments as module
from common.kv.store.record import HEADER_BYTES, USED_AT, Record, record_key
from common.kv.store.sealing import SEAL_BYTES, Sealing, sealed_for, secret_of
from common.kv.store.segments import Segments
from common.kv.store.table import BlockName
from tests.unit.common.kv.store.test_segments import GEOMETRY, RECORD, SLOTS, Rig

SECRET, OTHER = b"s" * 32, b"o" * 32
KEY = record_key("fingerprint", 2048, 0, sealed_for(SECRET))


class SealedRig(Rig):
    secret = SECRET

    def open(self, key: bytes = KEY, slots: int = SLOTS) -> Segments:
        made = Segments(self.folder, key, GEOMETRY.block_bytes, slots, self.secret)
        assert made.open()
        return made


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SealedRig]:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 6 * RECORD)
    rig = SealedRig(tmp_path / "d0.0")
    yield rig
    rig.segments.close()


def test_blocks_come_back_and_are_found_by_the_next_process(rig: SealedRig) -> None:
    names = {slot: rig.put(slot, slot + 2, used_at=slot + 0.5) for slot in (0, 5, 6)}
    rig.segments.mark_used(5, 77.25)
    rig.segments.close()
    rig.segments = rig.open()
    assert {at: record.name for at, record in rig.segments.scan()} == names
    assert [record.used_at for _, record in rig.segments.scan()] == [0.5, 77.25, 6.5]
    for slot, name in names.items():
        assert rig.get(slot, name) == rig.block(slot + 2)
    assert rig.get(1, names[0]) is None, "nothing was written there"


def test_neither_kv_nor_a_prompts_hash_can_be_read_in_the_file(rig: SealedRig) -> None:
    name = rig.put(0, 2)
    (path,) = rig.files()
    written = path.read_bytes()
    assert name.block_hash not in written
    assert rig.block(2)[:64] not in written
    assert written.count(SECRET) == 0


def test_two_writes_of_one_block_have_nothing_in_common(rig: SealedRig) -> None:
    rig.put(0, 2)
    (path,) = rig.files()
    first = path.read_bytes()[: HEADER_BYTES + GEOMETRY.block_bytes]
    rig.put(0, 2)
    second = path.read_bytes()[: HEADER_BYTES + GEOMETRY.block_bytes]
    alike = sum(a == b for a, b in zip(first, second, strict=True))
    assert alike < len(first) / 50


def test_what_was_changed_cut_or_moved_is_refused(rig: SealedRig) -> None:
    name, other = rig.put(0, 2), rig.put(1, 3)
    (path,) = rig.files()
    good = path.read_bytes()
    header = HEADER_BYTES + SEAL_BYTES
    for at in (0, 20, header - USED_AT.size - 1, header, header + 600, header + 20 + 2048):
        bad = bytearray(good)
        bad[at] ^= 1
        path.write_bytes(bad)
        assert rig.get(0, name) is None, at
    path.write_bytes(good[RECORD : 2 * RECORD] + good[RECORD:])
    assert rig.get(0, name) is None
    assert rig.get(0, other) == rig.block(3), "it is this record, whole"
    swapped = good[:header] + good[RECORD + header :]
    path.write_bytes(swapped.ljust(len(good), b"\0"))
    assert rig.get(0, name) is None, "the block of another record, which can be opened"


@pytest.mark.parametrize("secret", [b"", OTHER])
def test_what_has_another_secret_or_none_is_somebody_elses(rig: SealedRig, secret: bytes) -> None:
    rig.put(0, 2)
    (path,) = rig.files()
    stranger = Segments(rig.folder, KEY, GEOMETRY.block_bytes, SLOTS, secret)
    assert list(stranger.scan()) == []
    rig.segments.close()
    rig.secret = secret
    rig.segments = rig.open(record_key("fingerprint", 2048, 0, sealed_for(secret)))
    assert not path.exists()


def test_a_block_longer_than_the_last_one_is_sealed_too() -> None:
    sealing = Sealing(SECRET, KEY)
    for size in (10, 1000, 100):
        data = np.arange(size, dtype=np.uint8)
        out = np.zeros(size, np.uint8)
        assert sealing.open_block(sealing.seal_block(data).copy(), out)
        assert (out == data).all()
    assert sealing.open(sealing.seal(b"text")) == b"text"
    assert sealing.open(b"short") is None


def config(path: Path, key_file: str = "") -> StoreConfig:
    return StoreConfig(
        ram_mib=1, disk_mib=1, path=str(path), encrypt_at_rest=True, key_file=key_file
    )


def test_the_key_is_made_once_beside_the_store_and_closed_to_others(tmp_path: Path) -> None:
    made = secret_of(config(tmp_path / "kv"))
    path = tmp_path / "kv" / "store.key"
    assert (len(made), secret_of(config(tmp_path / "kv"))) == (32, made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["store.key"]
    elsewhere = tmp_path / "keys" / "k"
    assert secret_of(config(tmp_path / "kv", str(elsewhere))) != made
    assert elsewhere.exists()


def test_whoever_comes_second_takes_the_first_ones_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = secret_of(config(tmp_path))
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert secret_of(config(tmp_path)) == first
    assert [one.name for one in tmp_path.iterdir()] == ["store.key"]


def test_nothing_is_made_where_nothing_is_encrypted(tmp_path: Path) -> None:
    assert secret_of(StoreConfig(path=str(tmp_path))) == b""
    assert list(tmp_path.iterdir()) == []
    assert sealed_for(b"") == ""
    assert len({sealed_for(secret) for secret in (SECRET, OTHER, b"")}) == 3


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("ab" * 32, 0o640, "it has mode 0640; run chmod 0600"),
        ("ab" * 31, 0o600, "it has not 64 hexadecimal digits"),
        ("zz" * 32, 0o600, "no hexadecimal digits"),
        ("", 0o600, "it has not 64 hexadecimal digits"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_with_the_fix(
    tmp_path: Path, text: str, mode: int, says: str
) -> None:
    path = tmp_path / "store.key"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(BatonError, match=says) as raised:
        secret_of(config(tmp_path))
    assert raised.value.code is Code.CONFIG_INVALID
    assert str(path) in str(raised.value)
    if text:
        assert text not in str(raised.value), "a key is not told"


def test_a_link_and_a_folder_that_cannot_be_written_to_are_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("ab" * 32)
    (tmp_path / "store.key").symlink_to(tmp_path / "key")
    with pytest.raises(BatonError, match="it is not a file; remove it"):
        secret_of(config(tmp_path))
    (tmp_path / "store.key").unlink()
    (tmp_path / "store.key").mkdir(mode=0o700)
    with pytest.raises(BatonError, match="it is not a file; remove it"):
        secret_of(config(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(BatonError, match=r"see \[kv\.store\] key_file"):
        secret_of(config(tmp_path, str(tmp_path / "file" / "key")))


def test_without_the_library_the_sentence_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(BatonError, match="pip install 'baton-serve\\[encryption\\]'"):
        secret_of(config(tmp_path))


def test_a_record_keeps_the_routers_name_and_the_owner(rig: SealedRig) -> None:
    name = BlockName(0, b"h" * 32)
    data = np.zeros(GEOMETRY.block_bytes, np.uint8)
    for at, (ours, owner) in enumerate(itertools.product((b"", b"ours-123"), (b"", b"owner-12"))):
        rig.segments.write(at, Record(name, b"d" * 16, 1.0, ours, owner), data)
        record = rig.segments.read(at, np.empty_like(data))
        assert record == Record(name, b"d" * 16, 1.0, ours, owner)

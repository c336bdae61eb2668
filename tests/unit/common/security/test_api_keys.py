"""The key file on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigError
from common.security.api_keys import KeyRecord, digest, edited, new_key, read_keys


def add(path: Path, tenant: str = "t") -> str:
    key, key_id, sha256 = new_key()
    with edited(path) as records:
        records.append(KeyRecord(id=key_id, sha256=sha256, tenant=tenant))
    return key


def test_the_file_holds_digests_and_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path)
    secret = key.rsplit("_", 1)[1]
    assert path.stat().st_mode & 0o777 == 0o640
    assert secret not in path.read_text()
    assert read_keys(path).keys[0].sha256 == digest(secret)


def test_an_edit_that_fails_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    before = path.read_bytes()

    def fail() -> None:
        with edited(path) as records:
            records.clear()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("{", 0o640, "not a key file"),
        ('{"version": 2}', 0o640, "not a key file"),
        ('{"keyz": []}', 0o640, "keyz"),
        ("{}", 0o644, "chmod 0640"),
        ("{}", 0o642, "chmod 0640"),
    ],
)
def test_what_is_not_a_safe_key_file_is_refused(
    tmp_path: Path, text: str, mode: int, says: str
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=says):
        read_keys(path)


def test_an_id_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    record = KeyRecord(id="0" * 12, sha256="0" * 64, tenant="t")
    with edited(path) as records:
        records += [record, record]
    with pytest.raises(ConfigError, match="twice"):
        read_keys(path)

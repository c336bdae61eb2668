"""The key file in use follows the file on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from common.errors import BatonError, ConfigError
from common.security.api_keys import KeyRecord, edited, new_key
from services.gateway.auth.authenticator import Authenticator

LOG = structlog.get_logger("test")


def add(path: Path) -> tuple[str, str]:
    key, key_id, sha256 = new_key()
    with edited(path) as records:
        records.append(KeyRecord(id=key_id, sha256=sha256, tenant="t"))
    return key, key_id


def accepts(authenticator: Authenticator, key: str) -> bool:
    try:
        return bool(authenticator.caller((f"Bearer {key}",), ()))
    except BatonError:
        return False


def test_added_and_revoked_keys_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    first, first_id = add(path)
    authenticator = Authenticator(str(path), LOG)
    second, _ = add(path)
    assert accepts(authenticator, first)
    assert not accepts(authenticator, second)
    authenticator.refresh()
    assert accepts(authenticator, second)
    with edited(path) as records:
        records[:] = [record for record in records if record.id != first_id]
    authenticator.refresh()
    assert not accepts(authenticator, first)


@pytest.mark.parametrize("spoil", ["garbage", "mode", "gone"])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_said_once(
    tmp_path: Path, spoil: str
) -> None:
    path = tmp_path / "keys.json"
    key, _ = add(path)
    authenticator = Authenticator(str(path), LOG)
    if spoil == "garbage":
        path.write_text("{")
    elif spoil == "mode":
        path.chmod(0o644)
    else:
        path.unlink()
    with capture_logs() as logs:
        authenticator.refresh()
        authenticator.refresh()
    assert [entry["event"] for entry in logs] == ["keys.rejected"]
    assert accepts(authenticator, key)


def test_without_a_file_everybody_is_anonymous() -> None:
    assert Authenticator("", LOG).caller((), ()).tenant == ""


def test_a_first_reading_that_fails_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="baton keys add"):
        Authenticator(str(tmp_path / "none.json"), LOG)

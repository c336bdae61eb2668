"""`baton keys`, as a person uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.security.api_keys import digest, read_keys
from services.cli import main


def test_a_key_is_printed_once_listed_without_secret_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.json"
    add = ["keys", "add", "--file", str(file), "--tenant", "shop", "--requests-per-min", "60"]
    assert main([*add, "--priority", "interactive"]) == 0
    key = capsys.readouterr().out.strip()
    key_id, secret = key.split("_")[1:]
    (record,) = read_keys(file).keys
    assert (record.id, record.sha256) == (key_id, digest(secret))
    assert (record.priority, record.requests_per_min) == ("interactive", 60)
    assert main(["keys", "list", "--file", str(file)]) == 0
    listed = capsys.readouterr().out
    assert key_id in listed
    assert "shop" in listed
    assert secret not in listed
    assert record.sha256 not in listed
    assert main(["keys", "revoke", "--file", str(file), key_id]) == 0
    assert read_keys(file).keys == []
    assert main(["keys", "revoke", "--file", str(file), key_id]) == 2


def test_the_fleet_file_may_name_the_key_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(f'[gateway]\nkeys_file = "{tmp_path}/k.json"\n')
    assert main(["keys", "add", "--config", str(fleet), "--tenant", "t"]) == 0
    assert len(read_keys(tmp_path / "k.json").keys) == 1
    fleet.write_text("")
    assert main(["keys", "list", "--config", str(fleet)]) == 2
    assert "names no key file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--tenant", "a b"], ["--tenant", "t", "--weight", "0"], ["--tenant", ""]]
)
def test_bad_values_are_one_line(
    tmp_path: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "add", "--file", str(tmp_path / "k"), *flags]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "k").exists()

"""`baton keygen`, as a person uses it: from the first keys to a rotation's end."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from common.security.files import (
    KV,
    NEXT_SECRET,
    PEERS,
    SECRET,
    read_kv_secrets,
    read_peers,
    read_secret,
)
from services.cli import main


def keygen(folder: Path, command: str, *arguments: str) -> int:
    return main(["keygen", command, "--dir", str(folder), *arguments])


def keys(folder: Path, host: str, seen_by: str) -> list[str]:
    peers = {peer.name: peer.keys for peer in read_peers(folder / seen_by / PEERS).peers}
    return peers.get(host, [])


def test_each_host_gets_its_secret_and_the_list_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keygen(tmp_path, "add", "a=10.0.0.1", "b=10.0.0.2,10.1.0.2") == 0
    secrets = {host: read_secret(tmp_path / host / SECRET) for host in "ab"}
    assert secrets["a"].secret != secrets["b"].secret
    for host, seen_by in ("ab", "ba", "aa"):
        assert keys(tmp_path, host, seen_by) == [secrets[host].public]
    for file in tmp_path.rglob("*.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert keygen(tmp_path, "list") == 0
    listed = capsys.readouterr().out
    assert "10.0.0.2,10.1.0.2" in listed
    assert secrets["a"].secret not in listed + repr(secrets["a"])


def test_a_later_host_leaves_the_others_keys_alone(tmp_path: Path) -> None:
    assert keygen(tmp_path, "add", "a=10.0.0.1") == 0
    before = (tmp_path / "a" / SECRET).read_bytes()
    assert keygen(tmp_path, "add", "b=10.0.0.2", "a=10.0.0.9") == 0
    assert (tmp_path / "a" / SECRET).read_bytes() == before
    (a,) = (peer for peer in read_peers(tmp_path / "b" / PEERS).peers if peer.name == "a")
    assert a.addresses == ["10.0.0.9"]


def test_roles_and_names_are_set_kept_and_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rights() -> tuple[list[str], list[str], list[str]]:
        (a,) = read_peers(tmp_path / "a" / PEERS).peers
        return [*a.roles], a.names, a.addresses

    assert keygen(tmp_path, "add", "--roles", "decode", "--names", "d0,d1", "a=10.0.0.1") == 0
    assert rights() == (["decode"], ["d0", "d1"], ["10.0.0.1"])
    assert keygen(tmp_path, "add", "--names", "d0", "a") == 0
    assert rights() == (["decode"], ["d0"], ["10.0.0.1"])
    assert keygen(tmp_path, "list") == 0
    assert "decode d0 " in capsys.readouterr().out
    assert keygen(tmp_path, "add", "--roles", "", "a=") == 0
    assert rights() == ([], ["d0"], [])
    assert keygen(tmp_path, "add", "--roles", "king", "a") == 2
    assert keygen(tmp_path, "add", "--names", "d0", "b") == 2


def test_a_rotation_has_two_good_keys_until_it_is_retired(tmp_path: Path) -> None:
    keygen(tmp_path, "add", "a=10.0.0.1", "b=10.0.0.2")
    old = read_secret(tmp_path / "a" / SECRET).public
    assert keygen(tmp_path, "rotate", "a") == 0
    new = read_secret(tmp_path / "a" / NEXT_SECRET).public
    assert keys(tmp_path, "a", seen_by="b") == [old, new]
    assert read_secret(tmp_path / "a" / SECRET).public == old
    assert keygen(tmp_path, "rotate", "a") == 2
    assert keygen(tmp_path, "retire", "a") == 0
    assert keys(tmp_path, "a", seen_by="b") == [new]
    assert read_secret(tmp_path / "a" / SECRET).public == new
    assert keygen(tmp_path, "retire", "a") == 2


def test_a_revoked_host_is_in_nobodys_list(tmp_path: Path) -> None:
    keygen(tmp_path, "add", "a=10.0.0.1", "b=10.0.0.2")
    assert keygen(tmp_path, "revoke", "b") == 0
    assert keys(tmp_path, "b", seen_by="a") == []
    assert not (tmp_path / "b" / PEERS).exists()


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("add", ["../escape=10.0.0.2"], "regex"),
        ("add", ["c=10.0.0.1"], "the address 10.0.0.1 twice"),
        ("rotate", ["nobody"], "there are: a"),
        ("revoke", ["nobody"], "there are: a"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    arguments: list[str],
    says: str,
) -> None:
    keygen(tmp_path / "keys", "add", "a=10.0.0.1")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json")}
    assert keygen(tmp_path / "keys", command, *arguments) == 2
    assert says in capsys.readouterr().err
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json")} == before


def test_lists_that_differ_are_not_guessed_about(tmp_path: Path) -> None:
    keygen(tmp_path, "add", "a=10.0.0.1", "b=10.0.0.2")
    (tmp_path / "a" / PEERS).write_text('{"version": 1, "peers": []}')
    assert keygen(tmp_path, "add", "c=10.0.0.3") == 2


def kv_secrets(folder: Path, host: str) -> list[str]:
    return read_kv_secrets(folder / host / KV).secrets


def test_all_hosts_share_one_secret_for_kv_which_later_hosts_get_too(tmp_path: Path) -> None:
    keygen(tmp_path, "add", "a=10.0.0.1", "b=10.0.0.2")
    (secret,) = kv_secrets(tmp_path, "a")
    keygen(tmp_path, "add", "c=10.0.0.3", "a=10.0.0.9")
    assert [kv_secrets(tmp_path, host) for host in "abc"] == [[secret]] * 3
    assert stat.S_IMODE((tmp_path / "c" / KV).stat().st_mode) == 0o640


def test_a_folder_made_before_there_was_a_secret_for_kv_gets_one(tmp_path: Path) -> None:
    keygen(tmp_path, "add", "a=10.0.0.1")
    (tmp_path / "a" / KV).unlink()
    assert keygen(tmp_path, "rotate-kv") == 0
    assert len(kv_secrets(tmp_path, "a")) == 1


def test_the_secret_for_kv_is_replaced_in_two_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keygen(tmp_path, "rotate-kv") == 2
    keygen(tmp_path, "add", "a=10.0.0.1", "b=10.0.0.2")
    (old,) = kv_secrets(tmp_path, "a")
    assert keygen(tmp_path, "retire-kv") == 2
    assert keygen(tmp_path, "rotate-kv") == 0
    first, new = kv_secrets(tmp_path, "b")
    assert (first, kv_secrets(tmp_path, "a")) == (old, [old, new])
    assert new != old
    assert keygen(tmp_path, "rotate-kv") == 2
    assert keygen(tmp_path, "retire-kv") == 0
    assert [kv_secrets(tmp_path, host) for host in "ab"] == [[new], [new]]
    assert keygen(tmp_path, "revoke", "b") == 0
    assert keygen(tmp_path, "revoke", "a") == 0
    told = capsys.readouterr().out
    assert "rotate-kv" in told
    assert new not in told


def test_two_secrets_for_kv_in_one_folder_are_refused(tmp_path: Path) -> None:
    keygen(tmp_path, "add", "a=10.0.0.1", "b=10.0.0.2")
    path = tmp_path / "b" / KV
    path.write_text(path.read_text().replace(kv_secrets(tmp_path, "b")[0], "0" * 64))
    assert keygen(tmp_path, "list") == 2

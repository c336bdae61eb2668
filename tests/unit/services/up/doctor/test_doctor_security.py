"""What the doctor says of keys and of what is open: well, worse, and what cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config import from_mapping
from common.security.api_keys import KeyRecord, edited, new_key
from common.security.files import KV, SECRET
from services.keygen.folder import KeyFolder
from services.up.doctor import security
from services.up.doctor.finding import Finding, Level

CONTROL = {"router": {"control": "tcp://10.0.0.1:7000"}}


def found(**sections: Any) -> list[Finding]:
    return security.check(from_mapping(sections))


def troubles(findings: list[Finding]) -> dict[str, tuple[Level, str]]:
    return {f.name: (f.level, f.fix) for f in findings if f.level is not Level.PASS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keys = KeyFolder(tmp_path / "curve")
    keys.add("a", ["10.0.0.1"])
    keys.add("b", ["10.0.0.2"])
    return tmp_path / "curve" / "a"


def test_a_fleet_on_one_host_needs_nothing() -> None:
    assert troubles(found()) == {}


def test_good_keys_pass(folder: Path) -> None:
    findings = found(security={"keys_dir": str(folder)}, **CONTROL)
    assert troubles(findings) == {}
    assert any("this host is a" in finding.saw for finding in findings)


def test_open_control_sockets_are_warned_of() -> None:
    level, fix = troubles(found(security={"insecure": True}, **CONTROL))["curve"]
    assert level is Level.WARN
    assert "baton keygen" in fix


def test_unusable_keys_fail_with_their_fix(folder: Path) -> None:
    (folder / SECRET).chmod(0o644)
    level, fix = troubles(found(security={"keys_dir": str(folder)}))["curve"]
    assert level is Level.FAIL
    assert "chmod 0640" in fix


def test_a_secret_that_is_in_no_list_fails(folder: Path) -> None:
    KeyFolder(folder.parent).rotate("a")
    KeyFolder(folder.parent).retire("a")
    stale = KeyFolder(folder.parent)
    stale.rotate("a")
    (folder / "secret.next.json").unlink()
    found_before = troubles(found(security={"keys_dir": str(folder)}))
    assert found_before["curve rotation"][0] is Level.WARN
    stale.retire("a")
    level, fix = troubles(found(security={"keys_dir": str(folder)}))["curve"]
    assert level is Level.FAIL
    assert "copy both files" in fix


def test_a_router_that_the_list_does_not_know_fails(folder: Path) -> None:
    unknown = {"router": {"control": "tcp://10.0.0.7:7000"}}
    level, fix = troubles(found(security={"keys_dir": str(folder)}, **unknown))["curve router"]
    assert level is Level.FAIL
    assert "keygen add" in fix


def test_a_folder_others_can_look_into_is_warned_of(folder: Path) -> None:
    folder.chmod(0o755)
    assert troubles(found(security={"keys_dir": str(folder)}))["curve folder"][0] is Level.WARN


def test_api_keys_and_tls_of_what_others_reach(tmp_path: Path) -> None:
    anonymous = {"host": "0.0.0.0", "allow_anonymous": True}
    said = troubles(found(gateway=anonymous, health=anonymous))
    assert set(said) == {"gateway keys", "health keys", "tls"}
    path = tmp_path / "keys.json"
    with edited(path) as records:
        key_id, sha256 = new_key()[1:]
        records.append(KeyRecord(id=key_id, sha256=sha256, tenant="t"))
    own = {"host": "0.0.0.0", "keys_file": str(path)}
    assert set(troubles(found(gateway=own))) == {"tls"}
    assert "of its own" in troubles(found(gateway=own, health=own))["health keys"][1]
    path.chmod(0o644)
    assert troubles(found(gateway=own))["gateway keys"][0] is Level.FAIL


def test_a_tls_key_open_to_others_is_told(tmp_path: Path) -> None:
    key = tmp_path / "tls.key"
    key.write_text("x")
    key.chmod(0o644)
    files = {"tls_key_file": str(key), "tls_certificate_file": str(key)}
    level, fix = troubles(found(gateway=files))["tls"]
    assert (level, "chmod 0640" in fix) == (Level.FAIL, True)


def with_kv(folder: Path | None = None, **kv: Any) -> dict[str, Any]:
    worker = {"kv": {"host": "10.0.0.1", "port": 7100} | kv}
    keys = {} if folder is None else {"security": {"keys_dir": str(folder)}}
    return {"prefill": {"p0": worker}, "decode": {"d0": worker}, **keys}


def test_a_kv_listener_at_a_changing_port_is_warned_of(folder: Path) -> None:
    assert set(troubles(found(**with_kv(folder, port=0)))) == {"kv exposure"}
    assert troubles(found(**with_kv(folder))) == {}
    (told,) = [f.saw for f in found(**with_kv(folder)) if f.name == "kv exposure"]
    assert "10.0.0.1:7100" in told
    assert "every interface" in told


def test_workers_that_take_anybody_are_warned_of() -> None:
    level, fix = troubles(found(**with_kv()))["kv secret"]
    assert level is Level.WARN
    assert "keys_dir" in fix


def test_an_unusable_secret_for_kv_fails_and_one_too_many_is_warned_of(folder: Path) -> None:
    keys = KeyFolder(folder.parent)
    keys.rotate_kv()
    assert "retire-kv" in troubles(found(**with_kv(folder)))["kv secret"][1]
    keys.retire_kv()
    assert troubles(found(**with_kv(folder))) == {}
    (folder / KV).unlink()
    level, fix = troubles(found(**with_kv(folder)))["kv secret"]
    assert level is Level.FAIL
    assert "rotate-kv" in fix


def test_workers_that_disagree_about_the_secret_fail(folder: Path) -> None:
    sections = with_kv(folder)
    sections["decode"] = {"d0": {"kv": {"authenticate": False}}}
    assert troubles(found(**sections))["kv secret"][0] is Level.FAIL

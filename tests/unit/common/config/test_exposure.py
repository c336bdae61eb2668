"""Who may be served without a key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.config import from_mapping
from common.errors import ConfigError
from common.security.open import kv_secrets_file


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_gateway_needs_no_keys(host: str) -> None:
    assert from_mapping({"gateway": {"host": host}}).gateway.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "gateway.example", "127.1"])
def test_another_address_needs_keys_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match="allow_anonymous = true"):
        from_mapping({"gateway": {"host": host}})
    for word in ({"allow_anonymous": True}, {"keys_file": "/etc/baton/keys.json"}):
        assert from_mapping({"gateway": {"host": host, **word}}).gateway.host == host


CONTROLS = [
    {"router": {"control": "{}"}},
    {"router": {"standby": {"r1": "{}"}}},
    {"gateway": {"stream_bind": "{}"}},
]


def at(control: dict[str, Any], endpoint: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(json.dumps(control).replace("{}", endpoint))
    return table


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_socket_that_others_reach_needs_keys_or_a_word(control: dict[str, Any]) -> None:
    for endpoint in ("tcp://10.0.0.1:7000", "tcp://[fd00::1]:7000", "tcp://eth0:7000"):
        with pytest.raises(ConfigError, match="baton keygen add"):
            from_mapping(at(control, endpoint))
        for word in ({"keys_dir": "/etc/baton/curve"}, {"insecure": True}):
            from_mapping(at(control, endpoint) | {"security": word})


@pytest.mark.parametrize("control", CONTROLS)
def test_loopback_and_ipc_need_none(control: dict[str, Any]) -> None:
    for endpoint in ("tcp://127.0.0.1:0", "tcp://[::1]:7000", "ipc:///run/baton/x.sock"):
        from_mapping(at(control, endpoint))


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize(
    "endpoint", ["tcp://*:7000", "tcp://0.0.0.0:7000", "tcp://[::]:7000", "udp://10.0.0.1:1",
                 "tcp://10.0.0.1", "tcp://10.0.0.1:70000", "10.0.0.1:7000"]
)  # fmt: skip
def test_wildcards_and_nonsense_are_refused_with_or_without_keys(
    control: dict[str, Any], endpoint: str
) -> None:
    for word in ({}, {"keys_dir": "/etc/baton/curve"}, {"insecure": True}):
        with pytest.raises(ConfigError, match=r"binds every interface|is no endpoint"):
            from_mapping(at(control, endpoint) | {"security": word})


def test_workers_that_shall_authenticate_need_the_folder_of_their_secret() -> None:
    strict = {"decode": {"d0": {"kv": {"authenticate": True}}}}
    with pytest.raises(ConfigError, match=r"decode\.d0\.kv\.authenticate.*baton keygen add"):
        from_mapping(strict)
    from_mapping(strict | {"security": {"keys_dir": "/etc/baton/curve"}})


@pytest.mark.parametrize(
    ("kv", "keys_dir", "path"),
    [
        ({}, "", ""),
        ({}, "/keys", "/keys/kv.json"),
        ({"authenticate": True}, "/keys", "/keys/kv.json"),
        ({"authenticate": False}, "/keys", ""),
        ({"authenticate": "auto"}, "/keys", "/keys/kv.json"),
    ],
)
def test_workers_authenticate_wherever_there_are_keys_unless_told(
    kv: dict[str, Any], keys_dir: str, path: str
) -> None:
    workers = {"prefill": {"p0": {"kv": kv}}, "decode": {"d0": {"kv": kv}}}
    config = from_mapping({**workers, "security": {"keys_dir": keys_dir}})
    assert kv_secrets_file(config, config.decode["d0"].kv) == path

"""The fleet file: precedence, strictness, and errors that name the key and the fix."""

import os
from pathlib import Path

import pytest

from common import config as configuration
from common.config import Config, default_run_dir, from_mapping
from common.errors import ConfigError
from common.messages import Role
from common.net.endpoints import admin_address, control_address, stream_address
from tests.rigs.other_user import OTHER_USER, needs_root


def write(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_file_over_defaults_and_environment_over_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[gateway]\nport = 9000\nhost = '::1'\n")
    environ = {"BATON_GATEWAY__PORT": "9001", "BATON_MODEL__PATH": "some/model", "HOME": "/x"}
    config, sources = configuration.effective(path, environ)
    assert (config.gateway.port, config.gateway.host) == (9001, "::1")
    assert config.model.path == "some/model"
    assert sources["gateway.port"] == "BATON_GATEWAY__PORT"
    assert sources["gateway.host"] == "file"
    assert "router.max_queue" not in sources


def test_worker_tables_override_the_fleet_key_by_key(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "[engine]\nkind = 'sim'\nmax_num_seqs = 8\n[engine.sim]\ndecode_step_ms = 3.0\n"
        "[prefill.p0]\n[decode.d0.engine]\nmax_num_seqs = 2\n[decode.d0.kv]\nlease_ms = 500\n",
    )
    config = configuration.load(path, {})
    assert config.worker(Role.PREFILL, "p0").engine.max_num_seqs == 8
    decode = config.worker(Role.DECODE, "d0")
    assert decode.engine.max_num_seqs == 2
    assert decode.engine.kind == "sim"
    assert decode.engine.sim.decode_step_ms == 3.0
    assert decode.kv.lease_ms == 500
    with pytest.raises(ConfigError, match=r"decode\.d9.*there: d0"):
        config.worker(Role.DECODE, "d9")


@pytest.mark.parametrize(
    ("raw", "path", "sentence"),
    [
        ({"gateway": {"prot": 1}}, "gateway", "unknown key 'prot'; allowed: host, port"),
        ({"gateway": {"port": "x"}}, "gateway.port", "Expected int, got str"),
        ({"gateway": {"port": 70000}}, "gateway.port", "<= 65535"),
        ({"engine": {"kind": "x"}}, "engine.kind", "allowed: 'vllm', 'sim'"),
        ({"decode": {"d0": {"engine": {"kind": "x"}}}}, "decode.d0.engine.kind", "allowed"),
        ({"prefill": {"p0": 3}}, "prefill.p0", "Expected object"),
        ({"surprise": {}}, "(top level)", "unknown key 'surprise'"),
        ({"router": {"kv_grant_max": 1.5}}, "router.kv_grant_max", "<= 1"),
    ],
)
def test_bad_values_name_the_key_and_what_is_allowed(
    raw: dict[str, object], path: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(raw)
    assert caught.value.param == path
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[gateway", "is not TOML"),
        ("[prefill.P_0]\n", "a name must match"),
        ("prefill = 3\n", "a table for each name, like \\[prefill.NAME\\]"),
        ("[prefill]\np0 = 3\n", "must be a table"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        configuration.load(write(tmp_path, text), {})


def test_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        configuration.load(tmp_path / "none.toml", {})


def test_environment_cannot_write_into_a_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="port is a value, not a section"):
        configuration.load(
            write(tmp_path, "[gateway]\nport = 1\n"), {"BATON_GATEWAY__PORT__DEEP": "1"}
        )


def test_flatten_names_every_key_once() -> None:
    keys = [key for key, _ in configuration.flatten(Config())]
    assert len(keys) == len(set(keys))
    assert {"gateway.port", "kv.lease_ms", "engine.sim.kv_blocks"} <= set(keys)


def test_two_workers_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"decode\.w1: \[prefill\.w1\] has the same name"):
        from_mapping({"prefill": {"w0": {}, "w1": {}}, "decode": {"w1": {}, "w2": {}}})


@pytest.mark.parametrize(
    ("over", "key"),
    [({"kind": "sim"}, "kind"), ({"args": {"quantization": "fp8"}}, r"args\.quantization")],
)
def test_workers_of_different_models_are_refused(over: dict[str, object], key: str) -> None:
    table = {"engine": over}
    with pytest.raises(ConfigError, match=rf"decode\.d1\.engine\.{key}: differs from decode\.d0"):
        from_mapping({"decode": {"d0": {}, "d1": table}})
    with pytest.raises(ConfigError, match=rf"decode\.d0\.engine\.{key}: differs from prefill\.p0"):
        from_mapping({"prefill": {"p0": table}, "decode": {"d0": {}}})
    from_mapping({"prefill": {"p0": table}, "decode": {"d0": table, "d1": table}})
    from_mapping({"decode": {"d0": {}, "d1": {"engine": {"args": {"enforce_eager": True}}}}})


def test_element_types_may_differ_between_prefill_and_decode_by_consent() -> None:
    def read(ours: dict[str, object], theirs: dict[str, object]) -> None:
        narrow = {"engine": {"dtype": "bfloat16"}, "kv": ours}
        from_mapping({"prefill": {"p0": narrow}, "decode": {"d0": {"kv": theirs}}})

    auto: dict[str, object] = {"compression": "auto"}
    read({"compression": "fp8"}, auto)
    for ours, theirs in (({}, {}), ({}, auto), (auto, {}), (auto, {**auto, "exact": True})):
        with pytest.raises(ConfigError, match=r"prefill\.p0\.engine\.dtype: .*\[kv\] compression"):
            read(ours, theirs)
    narrow = {"engine": {"dtype": "bfloat16"}, "kv": auto}
    with pytest.raises(ConfigError, match=r"decode\.d1\.engine\.dtype: differs from decode\.d0"):
        from_mapping({"decode": {"d0": {"kv": auto}, "d1": narrow}})


def test_the_default_run_dir_is_never_in_a_folder_that_users_share(tmp_path: Path) -> None:
    assert default_run_dir({"BATON_RUN_DIR": "/x", "HOME": "/h"}) == Path("/x")
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/h"}
    assert default_run_dir(runtime) == tmp_path / "baton"
    state = Path("/h/.local/state/baton/run")
    assert default_run_dir({"XDG_RUNTIME_DIR": "/no/such", "HOME": "/h"}) == state
    assert default_run_dir({"HOME": "/h"}) == state
    assert default_run_dir({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/baton/run")
    assert default_run_dir({}) == Path("/run/baton")


@needs_root
def test_a_runtime_directory_of_another_user_is_not_used(tmp_path: Path) -> None:
    os.chown(tmp_path, OTHER_USER, -1)
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": "/h"}
    assert default_run_dir(runtime) == Path("/h/.local/state/baton/run")


def test_addresses_default_to_the_run_dir_and_refuse_long_paths() -> None:
    config = from_mapping(
        {"fleet": {"run_dir": "/run/b"}, "router": {"control": "tcp://127.0.0.1:1"}}
    )
    assert control_address(config) == "tcp://127.0.0.1:1"
    assert admin_address(config) == "ipc:///run/b/admin.sock"
    assert stream_address(config, "g0") == "ipc:///run/b/g0.stream.sock"
    long = from_mapping({"fleet": {"run_dir": "/" + "x" * 120}})
    with pytest.raises(ConfigError, match="choose a shorter run_dir"):
        admin_address(long)


def test_served_name_is_the_last_part_of_the_path_unless_given() -> None:
    assert from_mapping({"model": {"path": "a/b/"}}).model.served_name == "b"
    assert from_mapping({"model": {"path": "a/b", "name": "c"}}).model.served_name == "c"

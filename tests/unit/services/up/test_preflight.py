"""What is found wrong before anything is started."""

from pathlib import Path

import pytest

from common.config import Config, from_mapping
from common.errors import ConfigError
from services.up import preflight

GIB = 1 << 30


def fleet(kind: str, workers: int) -> Config:
    return from_mapping(
        {
            "engine": {"kind": kind},
            "decode": {f"d{i}": {"engine": {"kind": kind}} for i in range(workers)},
        }
    )


def test_memory_counts_engines_weights_and_kv_and_names_the_ways_out() -> None:
    preflight.check_memory(fleet("vllm", 2), 3 * GIB)
    with pytest.raises(ConfigError, match=r"2 workers need about 2\.9 GiB, but 2\.0 GiB is free"):
        preflight.check_memory(fleet("vllm", 2), 2 * GIB)
    preflight.check_memory(fleet("sim", 8), 2 * GIB)


def test_memory_counts_what_stores_may_take() -> None:
    with_store = {"kv": {"store": {"ram_mib": 1024}}}
    config = from_mapping({"decode": {"d0": {"engine": {"kind": "vllm"}, **with_store}}})
    preflight.check_memory(config, int(2.6 * GIB))
    with pytest.raises(ConfigError, match=r"or \[kv\.store\] ram_mib"):
        preflight.check_memory(config, int(2.4 * GIB))


def test_what_a_worker_declares_counts_and_must_be_enough_for_it() -> None:
    decode = {"d0": {"memory_mib": 3072}, "d1": {}}
    config = from_mapping({"decode": decode})
    shares = {share.path: share.bytes for share in preflight.check_memory(config, 5 * GIB)}
    assert shares["decode.d0"] == 3 * GIB
    assert 1.2 * GIB < shares["decode.d1"] < 1.6 * GIB
    with pytest.raises(ConfigError, match=r"2 workers need about 4\.5 GiB, but 4\.0 GiB is free"):
        preflight.check_memory(config, 4 * GIB)
    small = from_mapping({"decode": {"d0": {"memory_mib": 1024}}})
    with pytest.raises(ConfigError, match=r"^decode\.d0\.memory_mib: 1\.0 GiB, but it needs about"):
        preflight.check_memory(small, 64 * GIB)


def test_on_gpus_only_the_hosts_part_is_counted() -> None:
    preflight.check_memory(fleet("vllm", 2), int(2.5 * GIB), on_gpus=True)


def test_a_run_dir_is_one_fleets_own(tmp_path: Path) -> None:
    lock = preflight.lock_run_dir(tmp_path)
    with pytest.raises(ConfigError, match=r"another `baton up` \(pid \d+\)"):
        preflight.lock_run_dir(tmp_path)
    lock.close()
    preflight.lock_run_dir(tmp_path).close()


def test_a_run_dir_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        preflight.lock_run_dir(tmp_path / "file" / "below")


def test_weights_are_what_lies_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(bytes(100))
    (tmp_path / "b.bin").write_bytes(bytes(20))
    (tmp_path / "config.json").write_text("{}")
    assert preflight.weights_bytes(tmp_path) == 120

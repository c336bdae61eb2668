"""A pool has room, a model, and workers that have something to give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common import config as configuration
from common.config import from_mapping
from common.errors import ConfigError

STORE = {"kv": {"store": {"ram_mib": 8}}}


def fleet(pool: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"prefill": {"p0": STORE}, "decode": {"d0": {}}, "pool": {"s0": pool}, **more}


def test_a_pool_with_room_is_taken() -> None:
    config = from_mapping(fleet(STORE))
    assert config.pool_named("s0").kv.store.ram_mib == 8
    assert config.kv_planes.keys() == {"prefill.p0", "decode.d0", "pool.s0"}
    with pytest.raises(ConfigError, match="no such pool in the file \\(there: s0\\)"):
        config.pool_named("s1")


def test_its_table_overrides_keys_of_kv_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        "[kv.store]\nram_mib = 4\nttl_s = 60\n[decode.d0]\n[pool.s0.kv.store]\nram_mib = 64\n"
    )
    store = configuration.load(path, {}).pool["s0"].kv.store
    assert (store.ram_mib, store.ttl_s) == (64, 60)


@pytest.mark.parametrize(
    ("raw", "key", "says"),
    [
        (fleet({}), "pool.s0.kv.store.ram_mib", "say how many MiB"),
        (
            fleet({"kv": {"store": {"ram_mib": 8, "disk_mib": 8, "path": "kv"}}}),
            "pool.s0.kv.store.path",
            "no absolute path; name a folder on a local disk",
        ),
        (
            fleet({"kv": {"store": {"ram_mib": 8, "pull": False}}}),
            "pool.s0.kv.store.pull",
            "leave it true",
        ),
        (fleet(STORE, prefill={}), "pool.s0", "set \\[kv.store\\] ram_mib, and leave pull true"),
        (fleet({"engine": {}}), "pool.s0", "engine"),
        (fleet(STORE) | {"pool": {"d0": STORE}}, "pool.d0", "\\[decode.d0\\] has the same name"),
        (fleet({"model": "x", **STORE}), "pool.s0.model", "no such model in the file"),
    ],
)
def test_what_could_not_work_names_the_key_and_the_fix(
    raw: dict[str, Any], key: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        from_mapping(raw)
    assert str(raised.value.param).startswith(key)

"""A store on disk has a place, and memory above it."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping
from common.errors import ConfigError


def read(**store: Any) -> None:
    from_mapping({"decode": {"d0": {"kv": {"store": store}}}})


def test_a_disk_below_memory_with_a_place_is_taken() -> None:
    read(ram_mib=8, disk_mib=8, path="/var/lib/baton/kv")
    read(ram_mib=8, path="relative but unused")


@pytest.mark.parametrize(
    ("store", "key", "says"),
    [
        ({"ram_mib": 8, "disk_mib": 8}, "path", "'' is no absolute path"),
        ({"ram_mib": 8, "disk_mib": 8, "path": "kv"}, "path", "name a folder on a local disk"),
        ({"disk_mib": 8, "path": "/kv"}, "ram_mib", "set ram_mib, or disk_mib = 0"),
    ],
)
def test_without_one_of_them_the_fix_is_named(store: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        read(**store)
    assert raised.value.param == f"decode.d0.kv.store.{key}"


@pytest.mark.parametrize("store", [{}, {"ram_mib": 8, "pull": False}])
def test_copies_of_streams_need_a_store_for_them(store: dict[str, Any]) -> None:
    kv = {"checkpoint": {"policy": "all"}, "store": store}
    with pytest.raises(ConfigError, match=r"set \[kv.store\] ram_mib and pull") as raised:
        from_mapping({"decode": {"d0": {}}, "kv": kv})
    assert raised.value.param == "kv.checkpoint.policy"
    from_mapping({"decode": {}, "kv": kv})
    holds = {"d0": {}, "d1": {"kv": {"store": {"ram_mib": 8, "pull": True}}}}
    from_mapping({"decode": holds, "kv": kv})

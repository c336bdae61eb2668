"""Above the soft limit new work is refused; the limit follows from the host or the container."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from common.config import GatewayConfig, from_mapping
from common.errors import BatonError, Code
from services.gateway.http.memory_limit import MemoryLimit, available_bytes


def config(mib: int) -> GatewayConfig:
    return from_mapping({"gateway": {"limits": {"memory_mib_max": mib}}}).gateway


def test_what_is_in_use_decides() -> None:
    own = psutil.Process().memory_info().rss >> 20
    roomy, tight = MemoryLimit(config(10 * own)), MemoryLimit(config(max(1, own // 2)))
    for limit in (roomy, tight):
        limit.check()  # nothing is known yet
        limit.measure()
    roomy.check()
    with pytest.raises(BatonError) as refused:
        tight.check()
    assert (refused.value.code, refused.value.http.status) == (Code.OVERLOADED, 503)
    assert refused.value.retry_after_ms
    assert "gateway.limits.memory_mib_max" in refused.value.message


def test_by_default_there_is_room() -> None:
    limit = MemoryLimit(config(0))
    limit.measure()
    limit.check()


def test_a_container_has_what_it_is_given(tmp_path: Path) -> None:
    total = psutil.virtual_memory().total
    limit, none, missing = tmp_path / "max", tmp_path / "none", tmp_path / "missing"
    limit.write_text("1048576\n")
    none.write_text("max\n")
    assert available_bytes((none, missing)) == total
    assert available_bytes((none, limit)) == 1 << 20

"""The doctor adds the memory of all workers of a host up, by model."""

from __future__ import annotations

from common.config import from_mapping
from services.up.doctor.fleet import memory

GIB = 1 << 30
CONFIG = from_mapping(
    {
        "models": {"chat": {}, "code": {}},
        "prefill": {"p0": {"model": "chat", "memory_mib": 2048}},
        "decode": {
            "d0": {"model": "chat", "memory_mib": 3072},
            "d1": {"model": "code", "memory_mib": 1536, "state": "warm"},
        },
    }
)


def test_the_shares_of_all_workers_are_added_up() -> None:
    found = memory(CONFIG, 8 * GIB, on_gpus=False)
    assert found.saw == (
        "the workers of the fleet file take about 6.5 of 8.0 GiB (chat 5.0, code 1.5)"
    )


def test_too_many_for_the_host_fails_with_the_sum() -> None:
    found = memory(CONFIG, 6 * GIB, on_gpus=False)
    assert found.level.value == "fail"
    assert "3 workers need about 6.5 GiB, but 6.0 GiB is free" in found.fix

"""What the core takes from a fleet file."""

from __future__ import annotations

from common.config import from_mapping
from common.messages import Role
from services.router.settings import from_config


def test_the_section_and_what_the_core_needs_besides() -> None:
    fleet = {
        "router": {
            "max_queue": 7,
            "remote_prefill": "auto",
            "standby": {"r1": ""},
            "liveness": {"rebuild_ms": 1_500.0, "deaths_max": 4},
        },
        "kv": {"lease_ms": 9_000.0, "load_timeout_ms": 4_000.0, "keep_ms": 500.0},
        "prefill": {"p0": {}},
        "decode": {"d0": {}},
    }
    settings = from_config(from_mapping(fleet), "r0", "i")
    assert (settings.name, settings.incarnation, settings.alone) == ("r0", "i", False)
    assert (settings.max_queue, settings.remote_prefill) == (7, "auto")
    assert (settings.liveness.deaths_max, settings.rebuild_seconds) == (4, 1.5)
    assert (settings.lease_ms, settings.idle_seconds) == (9_000.0, 6.0)
    assert settings.keep_seconds == 0.5
    assert settings.models == ("baton-tiny",)
    assert settings.expected == {
        (Role.PREFILL, "p0"): "baton-tiny",
        (Role.DECODE, "d0"): "baton-tiny",
    }

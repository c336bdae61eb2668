"""How many descriptors a daemon may have, needs, and keeps from clients."""

from __future__ import annotations

import resource

import pytest

from common.config import Config, from_mapping
from common.messages import Role
from common.process.descriptors import (
    LIMIT_MAX,
    kept,
    kept_from_clients,
    needed,
    raise_limit,
    shortage,
    soft_limit,
)

INFINITY = resource.RLIM_INFINITY


class Limits:
    """Of a process that is played."""

    def __init__(self, soft: int, hard: int) -> None:
        self.both = (soft, hard)
        self.calls = 0

    def get(self, _: int) -> tuple[int, int]:
        return self.both

    def set(self, _: int, both: tuple[int, int]) -> None:
        self.both = both
        self.calls += 1


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 65_536, 65_536),
        (1_024, INFINITY, LIMIT_MAX),
        (1_024, 1 << 30, LIMIT_MAX),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int
) -> None:
    limits = Limits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert raise_limit() == raised
    assert limits.both == (raised, hard), "the hard limit stays"
    assert soft_limit() == raised


@pytest.mark.parametrize(("soft", "hard"), [(256, 256), (INFINITY, INFINITY), (1 << 21, 1 << 22)])
def test_a_soft_limit_that_is_high_enough_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int
) -> None:
    limits = Limits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert raise_limit() == soft_limit()
    assert limits.calls == 0


def fleet(decode: int, clients: int = 100) -> Config:
    workers: dict[str, object] = {f"d{index}": {} for index in range(decode)}
    return from_mapping({"gateway": {"connections_max": clients}, "decode": workers})


def test_each_daemon_of_the_fleet_adds_to_the_need_and_clients_to_a_gateways() -> None:
    assert needed(fleet(9), Role.DECODE) > needed(fleet(1), Role.DECODE)
    assert needed(fleet(1), Role.GATEWAY) == needed(fleet(1), Role.DECODE) + 100


def test_what_clients_do_not_get_is_what_the_rest_needs_but_half_at_most() -> None:
    assert kept_from_clients(fleet(1), 65_536) == kept(fleet(1))
    assert kept_from_clients(fleet(64), 256) == 128


def test_a_limit_that_is_too_low_is_told_with_what_it_means_and_the_fix() -> None:
    config = fleet(1)
    need = needed(config, Role.GATEWAY)
    assert shortage(config, Role.GATEWAY, need) is None
    told = shortage(config, Role.GATEWAY, need - 1)
    assert told is not None
    assert f"may need {need} descriptors and gets {need - 1}" in told[0]
    assert "may lose its peers" in told[0]
    assert f"LimitNOFILE={need}" in told[1]
    few = shortage(fleet(1, clients=8_000), Role.GATEWAY, 4_096)
    assert few is not None
    assert "refuses clients before [gateway] connections_max" in few[0]

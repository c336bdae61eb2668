"""Each judgement of the doctor, from readings: what is well, what is worse, what cannot work: the
tests that start something."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from common.config import KvConfig
from services.up.doctor import fleet, ucx
from services.up.doctor.finding import Level
from tests.unit.services.up.doctor.test_finding import fleet_config, levels


def test_ucx_is_really_tried_here() -> None:
    findings = ucx.findings(KvConfig(), ucx.probe(KvConfig()))
    assert set(levels(findings).values()) == {Level.PASS}, findings
    assert "sysv" in findings[0].saw


@pytest.mark.parametrize(
    "kv", [KvConfig(transports="nonsense"), KvConfig(transports="tcp", interfaces="nope0")]
)
def test_ucx_that_cannot_start_is_a_failure_that_names_the_keys(kv: KvConfig) -> None:
    (finding,) = ucx.findings(kv, ucx.probe(kv))
    assert finding.level is Level.FAIL
    assert "kv.transports, kv.interfaces" in finding.saw


def test_a_taken_port_fails_unless_the_fleet_itself_has_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        config = fleet_config(tmp_path, other.getsockname()[1])
        assert levels(fleet.check(config, running=False, gpus=0))["gateway.port"] is Level.FAIL
        assert "gateway.port" not in levels(fleet.check(config, running=True, gpus=0))

"""Cells of a gateway: which are refused, and where their routers are."""

from __future__ import annotations

from typing import Any

import pytest

from common import config as configuration
from common.config.gateway import CELLS_MAX
from common.errors import ConfigError
from common.net.endpoints import cell_addresses, config_of_cell

FLEET = "[engine]\nkind = 'sim'\n[decode.d0]\n[prefill.p0]\n[router.standby]\nr1 = ''\n"


def parse(cells: str) -> configuration.Config:
    return configuration.parse(FLEET + cells)


def test_a_cell_is_the_files_own_fleet_or_elsewhere() -> None:
    config = parse(
        "[fleet]\nrun_dir = '/run/x'\n"
        "[gateway.cells.c0]\n[gateway.cells.c1]\nrun_dir = '/run/y'\nstandby = { r1 = '' }\n"
        "[gateway.cells.c2]\ncontrol = 'tcp://127.0.0.1:7000'\ncapacity = 2\n"
    )
    assert cell_addresses(config, "c0") == {
        "c0/main": "ipc:///run/x/control.sock",
        "c0/r1": "ipc:///run/x/r1.control.sock",
    }
    assert cell_addresses(config, "c1") == {
        "c1/main": "ipc:///run/y/control.sock",
        "c1/r1": "ipc:///run/y/r1.control.sock",
    }
    assert cell_addresses(config, "c2") == {"c2/main": "tcp://127.0.0.1:7000"}
    assert config_of_cell(config, "c1").fleet.run_dir == "/run/y"
    assert config_of_cell(config, "c0") is config
    assert config.gateway.cells["c2"].capacity == 2.0


MANY = "".join(f"[gateway.cells.c{n}]\nrun_dir = '/run/{n}'\n" for n in range(CELLS_MAX + 1))


@pytest.mark.parametrize(
    ("cells", "path", "says"),
    [
        ("[gateway.cells.c0]\n", "gateway.cells", "serves 2 to 64 cells"),
        (MANY, "gateway.cells", "serves 2 to 64 cells"),
        ("[gateway.cells.a]\n[gateway.cells.b]\n", "gateway.cells.b", "run_dir and control of a"),
        (
            "[gateway.cells.a]\nrun_dir = '/r'\n[gateway.cells.b]\nrun_dir = '/r'\n",
            "gateway.cells.b",
            "run_dir and control of a",
        ),
        (
            "[gateway.cells.a]\n[gateway.cells.b]\ncontrol = 'ipc:///x'\nstandby = { r1 = '' }\n",
            "gateway.cells.b",
            "where is r1?",
        ),
        (
            "[gateway.cells.a]\n[gateway.cells.b]\ncontrol = 'tcp://10.0.0.1:7000'\n",
            "gateway.cells.b.control",
            "no keys are asked for",
        ),
        (
            "[gateway.cells.a]\n[gateway.cells.b.standby]\nr1 = 'tcp://10.0.0.1:7000'\n",
            "gateway.cells.b.standby.r1",
            "no keys are asked for",
        ),
        ("[gateway.cells.a]\n[gateway.cells.b]\ncapacity = 0\n", "gateway.cells", "0"),
    ],
)
def test_what_no_gateway_could_serve_is_refused(cells: str, path: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(cells)
    assert path in raised.value.message
    assert says in raised.value.message


def test_without_cells_there_are_none() -> None:
    config: Any = parse("")
    assert config.gateway.cells == {}

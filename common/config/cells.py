"""`[gateway.cells.NAME]`: the cells that a gateway serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, field

from common.config.base import NAME_PATTERN, Section
from common.errors import ConfigError

CELLS_MAX = 64


class CellConfig(Section, frozen=True):
    """A cell is a fleet with its own fleet file, router, standby and workers. One of the cells may
    be the fleet of this file: then all of its keys but `capacity` are empty."""

    run_dir: str = ""
    """Run directory of the cell, where it is on this host: its sockets are found there, and
    `baton ctl --cell NAME` uses it."""
    control: str = ""
    """ZeroMQ endpoint of the cell's router; empty is the ipc socket in `run_dir`."""
    standby: dict[Annotated[str, Meta(pattern=NAME_PATTERN)], str] = field(default_factory=dict)
    """Further routers of the cell by name, each with its control endpoint; an empty one is an ipc
    socket in `run_dir`."""
    capacity: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    """Share of the tenants that belong to the cell, relative to the other cells: what it can serve,
    in any unit."""


def is_own(cell: CellConfig) -> bool:
    """Whether it is the fleet of the file that names it."""
    return not (cell.run_dir or cell.control or cell.standby)


def check_cells(cells: Mapping[str, CellConfig]) -> None:
    """Raises ConfigError for one cell alone, for two that are the same fleet, and for one whose
    routers cannot be found."""
    if len(cells) == 1 or len(cells) > CELLS_MAX:
        sentence = f"a gateway serves 2 to {CELLS_MAX} cells; for one fleet, leave them out"
        raise ConfigError("gateway.cells", sentence)
    seen: dict[tuple[str, str], str] = {}
    for name, cell in cells.items():
        other = seen.setdefault((cell.run_dir, cell.control), name)
        if other != name:
            sentence = f"has the run_dir and control of {other}; each cell is a fleet of its own"
            raise ConfigError(f"gateway.cells.{name}", sentence)
        lacks = [n for n, at in {"control": cell.control, **cell.standby}.items() if not at]
        if lacks and not cell.run_dir and not is_own(cell):
            sentence = f"where is {lacks[0]}? Give its endpoint, or the run_dir of the cell"
            raise ConfigError(f"gateway.cells.{name}", sentence)

"""How fast each daemon's memory grows, whatever restarts it saw.

A process that was started anew begins another series. All series of a daemon share one slope, each
with a level of its own: least squares within the series, added up. What a process does in its first
`WARM_SECONDS` is no growth and is left out: it fills its tables, and over shared memory UCX touches
some 30 MiB in the first 3,000 handoffs and nothing more after (none over TCP). A verdict therefore
takes a run of ten minutes or more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import psutil

from tests.chaos.cell import Cell
from tests.chaos.report import Row

EVERY_SECONDS = 10.0
WARM_SECONDS = 300.0
POINTS_MIN = 12
MIB_PER_MIN_MAX = 1.0

Series = Sequence[tuple[float, float]]


class Memory:
    """`series`: of each process by daemon and pid, (seconds, resident bytes). `families`: with all
    that a daemon started, such as a worker's engine."""

    def __init__(self, *, families: bool = False) -> None:
        self._families = families
        self.series: dict[tuple[str, int], list[tuple[float, float]]] = {}

    async def watch(self, cell: Cell, names: Sequence[str]) -> None:
        """Until it is cancelled."""
        while True:
            for name in names:
                self._look(cell, name)
            await asyncio.sleep(EVERY_SECONDS)

    def _look(self, cell: Cell, name: str) -> None:
        """A daemon that is down just now, or dies meanwhile, has no memory."""
        try:
            process = cell.process(name)
            family = process.children(recursive=True) if self._families else []
            resident = float(sum(one.memory_info().rss for one in (process, *family)))
        except psutil.Error:
            return
        self.series.setdefault((name, process.pid), []).append((time.monotonic(), resident))

    def rows(self, names: Sequence[str]) -> list[Row]:
        return [self._row(name) for name in names]

    def _row(self, name: str) -> Row:
        mine = [warm(measured) for (owner, _), measured in self.series.items() if owner == name]
        points = sum(len(measured) for measured in mine if len(measured) > 1)
        ran = sum(owner == name for owner, _ in self.series)
        target = f"at most {MIB_PER_MIN_MAX:g} MiB/min"
        if points < POINTS_MIN:
            figure = f"{points} points after warming up, of {ran} processes: too few"
            return Row(f"- memory of {name}", figure, target, None)
        growth = slope(mine) * 60 / (1 << 20)
        now = max(measured[-1] for (owner, _), measured in self.series.items() if owner == name)[1]
        figure = (
            f"{growth:+.2f} MiB/min over {points} points of {ran} processes, "
            f"{now / (1 << 20):.0f} MiB at the end"
        )
        return Row(f"- memory of {name}", figure, target, growth <= MIB_PER_MIN_MAX)


def warm(series: Series) -> Series:
    """What comes after the first `WARM_SECONDS`."""
    start = series[0][0] + WARM_SECONDS
    return [point for point in series if point[0] >= start]


def slope(several: Sequence[Series]) -> float:
    """By least squares, one slope for all, each series at its own level; 0 for no spread."""
    over = under = 0.0
    for series in several:
        if not series:
            continue
        middle_x = sum(x for x, _ in series) / len(series)
        middle_y = sum(y for _, y in series) / len(series)
        over += sum((x - middle_x) * (y - middle_y) for x, y in series)
        under += sum((x - middle_x) ** 2 for x, _ in series)
    return over / under if under else 0.0

"""A line now and then, for runs that take long."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.chaos.cell import Cell
from tests.chaos.report import Row
from tests.rigs.load import Load, kinds_of

EVERY_SECONDS = 15.0


def say(rows: Sequence[Row]) -> None:
    """Rows of a part that is over, for who watches a long run."""
    sys.stderr.write("".join(f"{row.test}: {row.figure}\n" for row in rows))
    sys.stderr.flush()


async def report(test: str, cell: Cell, load: Load, least: int) -> None:
    """Until it is cancelled; on standard error, where it does not disturb the table."""
    begun = time.monotonic()
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        deaths = Counter(death.name for death in cell.deaths)
        died = ", ".join(f"{name} {n}" for name, n in sorted(deaths.items()))
        faults = kinds_of(load.answers)
        wrong = ", ".join(f"{n} {kind}" for kind, n in faults.items()) or "0 faults"
        sys.stderr.write(
            f"{test}, {time.monotonic() - begun:.0f} s: {len(load.answers)} of {least} answered, "
            f"{len(load.running)} running, {wrong}; deaths: {died or 'none'}\n"
        )
        sys.stderr.flush()

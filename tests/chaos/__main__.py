"""`make chaos`: every promise of the failure matrix under load, and a table of what was seen.

Names of scenarios may follow: `python -m tests.chaos kills router`. `--quick` is a cut of it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from tests.chaos.report import Row, table
from tests.chaos.scenarios import deaths, engines, hangs, leaving, limits, poison

Scenario = Callable[[], Awaitable[list[Row]]]
HANG_SECONDS = 30.0
HANG_SECONDS_QUICK = 10.0


def scenarios(*, quick: bool) -> dict[str, Scenario]:
    """By name, in the order of issue and table."""
    kills, least = (5, 200) if quick else (100, 20_000)
    hang = HANG_SECONDS_QUICK if quick else HANG_SECONDS
    return {
        "kills": lambda: deaths.workers(kills, 40, least),
        "only-prefill": lambda: deaths.only_prefill(8),
        "only-decode": lambda: deaths.only_decode(4),
        "router": lambda: deaths.router(8),
        "gateway": lambda: deaths.gateway(8),
        "stop-decode": lambda: hangs.stopped("d0", 6, hang),
        "stop-prefill": lambda: hangs.stopped("p0", 6, hang),
        "control-decode": lambda: hangs.control("d0", 6, hang),
        "control-prefill": lambda: hangs.control("p0", 6, hang),
        "control-late": lambda: hangs.control("d0", 6, hang, delay=0.2),
        "data-decode": lambda: hangs.data("d0", 6, hang),
        "data-prefill": lambda: hangs.data("p0", 6, hang),
        "corrupt": lambda: hangs.bent("flip", 6, hang),
        "lose": lambda: hangs.bent("drop", 6, hang),
        "mute": lambda: hangs.bent("mute", 6, hang),
        "late": lambda: hangs.bent("delay", 6, hang),
        "full-disk": lambda: limits.full_disk(8),
        "memory": lambda: limits.memory(8),
        "poison": lambda: poison.prompt(8),
        "term": lambda: leaving.terminated(3),
        "rollout": lambda: leaving.rollout(8),
        "rollout-stops": lambda: leaving.rollout_stops(8),
        "engine-dies": lambda: engines.lost("die", 6),
        "engine-hangs": lambda: engines.lost("hang", 6),
        "reset": lambda: hangs.bent("reset", 6, hang),
    }


def main() -> int:
    """Returns 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SCENARIO")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    known = scenarios(quick=chosen.quick)
    unknown = [name for name in chosen.names if name not in known]
    if unknown:
        parser.error(f"no scenario {unknown[0]}; there are: {', '.join(known)}")
    rows: list[Row] = []
    for name in chosen.names or known:
        begun = time.monotonic()
        rows += asyncio.run(_guarded(name, known[name]))
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    print(table(rows))
    return int(any(row.good is False for row in rows))


async def _guarded(name: str, scenario: Scenario) -> list[Row]:
    """A scenario that broke off is a row too, so that the others still run."""
    try:
        return await scenario()
    except (AssertionError, ExceptionGroup) as error:
        return [Row(name, f"broke off: {error}", "a verdict", good=False)]


if __name__ == "__main__":
    sys.exit(main())

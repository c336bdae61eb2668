"""`make chaos`: every promise of the failure matrix under load, and a table of what was seen.

Names of scenarios may follow: `python -m tests.chaos kills router`. `--quick` is a cut of it.
Those of `apart` run only by name: the full ones count to 20,000 (make chaos-full), `mixed` lasts
`--minutes` (make soak-chaos), `vllm` is on real engines (make chaos-vllm), and so are `vllm-cells`,
where one of two cells is lost, `vllm-speculation`, which kills workers that draft tokens `--times`
times, and `stores`, which are full for `--minutes` (make soak-store).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from common.errors import BatonError
from tests.chaos.report import Row, table
from tests.chaos.scenarios import (
    cells,
    closed,
    deaths,
    engines,
    hangs,
    leaving,
    limits,
    mixed,
    moves,
    poison,
    stores,
    storm,
    vllm,
)

Scenario = Callable[[], Awaitable[list[Row]]]
HANG_SECONDS = 30.0
HANG_SECONDS_QUICK = 10.0


def scenarios(*, quick: bool) -> dict[str, Scenario]:
    """By name, in the order of issue and table."""
    kills, least = (5, 200) if quick else (20, 2_000)
    count = 20 if quick else closed.EACH
    hang = HANG_SECONDS_QUICK if quick else HANG_SECONDS
    storm_seconds = 30.0 if quick else 150.0
    return {
        "kills": lambda: deaths.workers(kills, 40, least),
        "closed": lambda: closed.everywhere(count),
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
        "storm": lambda: storm.over_decodes(storm_seconds),
        "storm-poison": lambda: storm.with_poison(storm_seconds / 5),
        "term": lambda: leaving.terminated(3),
        "drained": leaving.drained,
        "rollout": lambda: leaving.rollout(8),
        "rollout-stops": lambda: leaving.rollout_stops(8),
        "engine-dies": lambda: engines.lost("die", 6),
        "engine-hangs": lambda: engines.lost("hang", 6),
        "moves": lambda: moves.everywhere(least),
        "reset": lambda: hangs.bent("reset", 6, hang),
    }


def apart(minutes: float, times: int) -> dict[str, Scenario]:
    return {
        "full": lambda: deaths.workers(
            100, deaths.LOADED_RATE, 20_000, deaths.LOADED, deaths.SHORT
        ),
        "full-rollout": lambda: leaving.rollout(
            deaths.LOADED_LONG_RATE, ask=deaths.LOADED_LONG, settings=deaths.LOADED
        ),
        "full-moves": lambda: moves.everywhere(20_000),
        "mixed": lambda: mixed.soak(minutes),
        "stores": lambda: stores.soak(minutes),
        "vllm": vllm.kinds,
        "vllm-cells": cells.one_lost,
        "vllm-speculation": lambda: vllm.speculating(times),
    }


def main() -> int:
    """Returns 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SCENARIO")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, default=30.0, help="of `mixed` and `stores`")
    parser.add_argument("--times", type=int, default=100, help="of `vllm-speculation`")
    chosen = parser.parse_args()
    usual = scenarios(quick=chosen.quick)
    known = usual | apart(chosen.minutes, chosen.times)
    unknown = [name for name in chosen.names if name not in known]
    if unknown:
        parser.error(f"no scenario {unknown[0]}; there are: {', '.join(known)}")
    rows: list[Row] = []
    for name in chosen.names or usual:
        begun = time.monotonic()
        rows += asyncio.run(_guarded(name, known[name]))
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    print(table(rows))
    return int(any(row.good is False for row in rows))


async def _guarded(name: str, scenario: Scenario) -> list[Row]:
    """A scenario that broke off is a row too, so that the others still run."""
    try:
        return await scenario()
    except (AssertionError, BatonError, ExceptionGroup) as error:
        why = "; ".join(str(leaf) or type(leaf).__name__ for leaf in _leaves(error))
        return [Row(name, f"broke off: {why}", "a verdict", good=False)]


def _leaves(error: Exception) -> list[Exception]:
    """What a group of groups is made of."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


if __name__ == "__main__":
    sys.exit(main())

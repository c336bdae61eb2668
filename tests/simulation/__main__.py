"""`python -m tests.simulation`: seeds without end, or one seed told aloud."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Unpack

from tests.simulation.campaign import Sums, campaign
from tests.simulation.world.clock import PromiseBrokenError
from tests.simulation.world.world import Kinds, World

REPORT_SECONDS = 10.0


def main(argv: list[str] | None = None) -> int:
    """The exit status: 1 when a promise broke."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Plays seeds of load and faults against all production cores in virtual time.",
    )
    add = parser.add_argument
    add("--seeds", type=int, default=2_000, help="how many (2000)")
    add("--first", type=int, default=0, help="the first of them (0)")
    add("--jobs", type=int, default=0, help="processes (one a core)")
    add("--seed", type=int, help="only this one, in this process")
    add("--trace", action="store_true", help="with --seed: print everything that happened")
    add("--roles", action="store_true", help="workers change their role, too")
    add("--switches", action="store_true", help="and faults come in each phase of such a change")
    add("--budgets", action="store_true", help="requests have KV budgets, and load is evened out")
    add("--scaling", action="store_true", help="hooks start and stop workers, with faults")
    add("--slots", action="store_true", help="decode workers are short of slots, prompts are long")
    add("--paces", action="store_true", help="decode workers differ in speed, tokens have an SLO")
    options = parser.parse_args(argv)
    kinds = Kinds(
        roles=options.roles,
        switches=options.switches,
        budgets=options.budgets,
        scaling=options.scaling,
        slots=options.slots,
        paces=options.paces,
    )
    if options.seed is not None:
        return _one(options.seed, World(options.seed, trace=options.trace, **kinds))
    return _many(options.first, options.seeds, options.jobs, **kinds)


def _one(seed: int, world: World) -> int:
    broken = ""
    try:
        outcome = world.run()
        print("\n".join(world.lines), end="\n" if world.lines else "")
        print(outcome)
    except PromiseBrokenError as error:
        broken = str(error)
        print("\n".join([*world.lines, f"BROKEN {broken}"]))
    print(f"seed {seed}, weather {world.faults.weather}, hash {world.clock.hash()}, {commit()}")
    return 1 if broken else 0


def _many(first: int, seeds: int, jobs: int, **kinds: Unpack[Kinds]) -> int:
    began = time.monotonic()
    told = [began]
    shown = 0

    def progress(sums: Sums) -> None:
        nonlocal shown
        now = time.monotonic()
        for seed, sentence in sums.failures[shown:]:
            print(f"FAILED seed {seed}: {sentence}", flush=True)
        shown = len(sums.failures)
        if now - told[0] >= REPORT_SECONDS:
            told[0] = now
            rate = sums.seeds / (now - began)
            left = (seeds - sums.seeds) / rate
            print(
                f"{sums.seeds}/{seeds} seeds, {rate:.1f}/s, {left / 60:.1f} min left, "
                f"{sums.failed} failed",
                flush=True,
            )

    sums = campaign(seeds, first=first, jobs=jobs, progress=progress, **kinds)
    flags = "".join(f" --{name}" for name, on in kinds.items() if on)
    _report(sums, seeds, time.monotonic() - began, flags)
    return 1 if sums.failed else 0


def _report(sums: Sums, asked: int, seconds: float, more: str) -> None:
    print(
        f"{sums.seeds} of {asked} seeds in {seconds:.0f} s ({sums.seeds / seconds:.1f}/s), "
        f"{sums.events} events, {sums.virtual_seconds / 3600:.2f} virtual hours, "
        f"{sums.requests} requests, {sums.amplification:.4f} dispatches each, "
        f"{sums.moves} moves, {sums.taken} with their KV, {sums.ahead} begun ahead of a slot, "
        f"{sums.roles} roles changed, "
        f"{sums.balanced} orders of controllers, {commit()}"
    )
    for title, counter in (
        ("ends", sums.ends), ("faults", sums.faults), ("weathers", sums.weathers),
        ("models", sums.models), ("moved", sums.moved), ("struck", sums.struck),
    ):  # fmt: skip
        parts = ", ".join(f"{name} {times}" for name, times in counter.most_common())
        print(f"  {title}: {parts}")
    if sums.failures:
        print(f"replay: python -m tests.simulation --seed {sums.failures[0][0]}{more} --trace")


def commit() -> str:
    """What a seed's number is worth nothing without."""
    asked = ["git", "describe", "--always", "--dirty"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    return f"commit {told.stdout.strip() or 'unknown'}"


if __name__ == "__main__":
    sys.exit(main())

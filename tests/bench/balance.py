"""Roles that follow the load against splits that stay: a day from 4:1 to 1:4 in an hour.

Virtual time: the production router and the cores of the workers, modelled engines. The work asked
for is what all ten workers can just do if the right ones prefill (`loadtest/capacity/day.py`).
Goodput is requests within the SLO. The ratios are against the best split that stays, and against
somebody who knows the day beforehand. Three days: the lengths of all requests shift along a cosine,
or the shares of two kinds do, or the lengths shift quickly between a night and a working day. The
last lines are loads that stay, at the split that suits them, for an hour each.

`make bench ARGS=balance` writes a picture of each day to build/; `python -m tests.bench.balance
--picture PATH` elsewhere, with a number for the later days.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from common.config import BalanceConfig
from loadtest.capacity.day import Day
from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Slo
from loadtest.show.plots import BLUE, GREY, ORANGE, figure, headed, png, quiet
from services.router.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROFILE = Profile(
    prefill_tokens_per_s=5_000.0,
    decode_step_ms=25.0,
    decode_step_ms_per_seq=0.5,
    max_num_seqs=32,
    kv_blocks=16_384,
)
"""About a model of 70 billion parameters on cards of today."""
SLO = Slo(ttft_ms=8_000.0, tpot_ms=60.0)
DAY = Day(PROFILE, workers=10, seconds=3_600.0)
FIRST_DAY = "all lengths shift"
OTHER_DAYS = {
    "two kinds shift their shares": DAY._replace(kinds=True),
    "lengths shift between night and working day": DAY._replace(steepness=2.0),
}
LONG_SECONDS = (30, 60, 120, 300, 600)
DEFAULT_LONG, LONG_MAX = 120, 600
CLAIRVOYANT = "clairvoyant"
PARTS = 60
RATIO_MIN, CLAIRVOYANT_MIN = 1.25, 0.90
JOBS = 2
SEED = 7


class Case(NamedTuple):
    """One fleet on one day."""

    name: str
    day: Day
    #: Workers that prefill at first.
    prefills: int
    #: The long window in seconds; 0 = no controller.
    long_s: int = 0
    #: Whether somebody who knows the day gives the orders.
    clairvoyant: bool = False


class Played(NamedTuple):
    case: Case
    #: Requests within the SLO per second, over the day and in each of its PARTS.
    goodput: float
    by_part: tuple[float, ...]
    #: Requests that came.
    requests: int
    #: As `Fleet.splits`.
    splits: tuple[tuple[float, int], ...]

    @property
    def switches(self) -> int:
        return len(self.splits) - 1

    @property
    def closest(self) -> float:
        """Seconds between the two changes that were closest; infinite if there were fewer."""
        times = [at for at, _ in self.splits[1:]]
        return min((b - a for a, b in pairwise(times)), default=float("inf"))


def played(case: Case) -> Played:
    day = case.day
    config = BalanceConfig()
    if case.long_s:
        config = BalanceConfig(mode="on", long_ms=case.long_s * 1_000.0)
    fleet = Fleet(
        Scenario(
            profile=day.profile,
            prefills=case.prefills,
            decodes=day.workers - case.prefills,
            arrivals=day.arrivals(SEED),
            seconds=day.seconds,
            slo=SLO,
            settings=Settings(
                ttft_slo_ms=SLO.ttft_ms,
                remote_prefill="auto",
                balance=config,
                worker_timeout_ms=1e12,
            ),
            roles=True,
            orders=day.orders() if case.clairvoyant else (),
        )
    )
    report = fleet.run()
    part, parts = day.seconds / PARTS, [0] * PARTS
    for sample in fleet.samples:
        if sample.done is not None and sample.done < day.seconds and sample.good(SLO):
            parts[int(sample.done / part)] += 1
    by_part = tuple(count / part for count in parts)
    return Played(case, report.goodput_rps, by_part, report.requests, tuple(fleet.splits))


def play_all(cases: Iterable[Case]) -> dict[str, Played]:
    """In processes of their own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(JOBS, mp_context=spawn) as pool:
        return {found.case.name: found for found in pool.map(played, cases)}


def main(picture: Path = Path("build/balance.png")) -> None:
    days: dict[str, tuple[Day, Sequence[int]]] = {FIRST_DAY: (DAY, LONG_SECONDS)}
    days |= {title: (day, (DEFAULT_LONG, LONG_MAX)) for title, day in OTHER_DAYS.items()}
    pictures = {title: draw(title, _of_day(title, *about)) for title, about in days.items()}
    steady = [(load, kinds) for kinds in (False, True) for load in (0.7, 1.0, 1.3)]
    cases = [
        Case(
            f"{load:g} x the load{', two kinds' if kinds else ''}",
            DAY._replace(load=load, ratio=1.0, kinds=kinds),
            DAY.workers // 2,
            DEFAULT_LONG,
        )
        for load, kinds in steady
    ]
    for name, each in play_all(cases).items():
        print(f"{name:<28}{each.switches} roles changed in an hour of a load that stays")
    picture.parent.mkdir(parents=True, exist_ok=True)
    for number, drawn in enumerate(pictures.values()):
        path = picture.with_stem(f"{picture.stem}-{number + 1}") if number else picture
        path.write_bytes(drawn)
        print(path)


def _of_day(title: str, day: Day, longs: Sequence[int]) -> dict[str, Played]:
    first = day.ideal(0.0)
    cases = [Case(_split(n), day, n) for n in range(1, day.workers)]
    cases.append(Case(CLAIRVOYANT, day, first, clairvoyant=True))
    cases += [Case(_named(long_s), day, first, long_s) for long_s in longs]
    found = play_all(cases)
    best, clairvoyant = best_of(found), found[CLAIRVOYANT]
    print(f"{title}, {clairvoyant.requests} requests")
    print("                goodput/s   of best   of clairvoyant   changes, closest")
    for case in cases:
        print(_line(found[case.name], best, clairvoyant), flush=True)
    return found


def best_of(found: dict[str, Played]) -> Played:
    """The best of the splits that stay."""
    return max((found[_split(n)] for n in range(1, DAY.workers)), key=lambda each: each.goodput)


def _split(prefills: int) -> str:
    return f"{prefills}P+{DAY.workers - prefills}D"


def _named(long_s: int) -> str:
    return f"on, {long_s} s"


def _line(each: Played, best: Played, clairvoyant: Played) -> str:
    of_best, of_clairvoyant = each.goodput / best.goodput, each.goodput / clairvoyant.goodput
    ours = each.case.long_s == DEFAULT_LONG
    under = ours and (of_best < RATIO_MIN or of_clairvoyant < CLAIRVOYANT_MIN)
    closest = f", {each.closest:.0f} s" if each.switches > 1 else ""
    return (
        f"{each.case.name:<16}{each.goodput:>9.2f}{of_best:>8.2f} x{of_clairvoyant:>15.2f} x"
        f"{each.switches:>11}{closest}{'  UNDER TARGET' if under else ''}"
    )


def draw(title: str, found: dict[str, Played]) -> bytes:
    """PNG of one day."""
    made = figure(10.5, 6.6)
    (roles, rates), (windows, bars) = made.subplots(2, 2)
    best, ours, clairvoyant = best_of(found), found[_named(DEFAULT_LONG)], found[CLAIRVOYANT]
    _roles_over_time(roles, found)
    hours = [24 * n / PARTS for n in range(PARTS)]
    for each, colour, label in (
        (clairvoyant, GREY, CLAIRVOYANT),
        (best, ORANGE, f"best that stays, {best.case.name}"),
        (ours, BLUE, "controller"),
    ):
        rates.plot(hours, each.by_part, color=colour, label=label, lw=1.4)
    rates.set_ylim(bottom=0)
    rates.legend(fontsize=8, frameon=False)
    quiet(rates, "requests within the SLO per second", "hour of the day", "")
    longs = [long_s for long_s in LONG_SECONDS if _named(long_s) in found]
    ratios = [found[_named(long_s)].goodput / best.goodput for long_s in longs]
    windows.bar([str(long_s) for long_s in longs], ratios, color=BLUE)
    windows.axhline(clairvoyant.goodput / best.goodput, color=GREY, lw=1, ls="--")
    windows.axhline(1.0, color=ORANGE, lw=1, ls="--")
    quiet(windows, "goodput by that of the best that stays, by long window", "seconds", "")
    static = [found[_split(n)] for n in range(1, DAY.workers)]
    labels = [each.case.name for each in static] + ["controller", CLAIRVOYANT]
    colours = [ORANGE] * len(static) + [BLUE, GREY]
    bars.bar(labels, [each.goodput for each in [*static, ours, clairvoyant]], color=colours)
    bars.tick_params(axis="x", rotation=60)
    quiet(bars, "goodput of the day, requests/s", "", "")
    headed(
        made,
        f"A day from 4:1 to 1:4 in prefill to decode work, in an hour ({title}): {DAY.workers} "
        f"workers, {ours.requests} requests; "
        f"the controller serves {ours.goodput / best.goodput:.2f} times "
        f"the best split that stays and {ours.goodput / clairvoyant.goodput:.0%} of a clairvoyant",
    )
    return png(made)


def _roles_over_time(axes: Axes, found: dict[str, Played]) -> None:
    for name, colour in ((CLAIRVOYANT, GREY), (_named(DEFAULT_LONG), BLUE)):
        times = [24 * at / DAY.seconds for at, _ in found[name].splits]
        counts = [count for _, count in found[name].splits]
        axes.step([*times, 24.0], [*counts, counts[-1]], where="post", color=colour, lw=1.5)
    axes.axhline(best_of(found).case.prefills, color=ORANGE, lw=1, ls="--")
    axes.set_ylim(0, DAY.workers)
    quiet(axes, f"prefill workers of {DAY.workers}", "hour of the day", "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("build/balance.png"))
    main(parser.parse_args().picture)

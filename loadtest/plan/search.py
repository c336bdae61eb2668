"""The smallest fleets that meet the SLO, which kind to take, and what would change the answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadtest.capacity.profile import Profile
from loadtest.plan.sizing import (
    FleetOutcome,
    FleetShape,
    TargetLoad,
    demand,
    play,
    scaled,
    splits,
    whole,
    with_network,
)

BEYOND = 2
"""How many workers more than the smallest fleet the other kind may take before it is given up."""
CLEAR = 0.8
"""With as many workers, disaggregation must bring TTFT or ITL under this share to be worth it."""
NETWORKS = (0.03, 0.1, 0.3, 3.0)
RATES = (0.7, 1.3)
PROMPTS = (0.5, 1.5)


class Search(msgspec.Struct, frozen=True):
    """The fleets that were simulated."""

    #: All of them, by size.
    played: list[FleetOutcome]
    #: The smallest disaggregated fleet that met the target.
    split: FleetOutcome | None
    #: The smallest replicated fleet that met the target.
    replicated: FleetOutcome | None

    @property
    def found(self) -> list[FleetOutcome]:
        return [outcome for outcome in (self.replicated, self.split) if outcome is not None]


class Line(msgspec.Struct, frozen=True):
    """One changed assumption and the attainment of each kind of fleet; None = beyond the data of
    the profile."""

    what: str
    replicated: float | None
    split: float | None


class Searcher:
    """Simulates each fleet once."""

    def __init__(
        self,
        profile: Profile,
        load: TargetLoad,
        target: float,
        report_progress: Callable[[str], None],
    ) -> None:
        #: The outcomes, in the order of simulation.
        self.played: dict[FleetShape, FleetOutcome] = {}
        self._profile = profile
        self._load = load
        self._target = target
        self._report_progress = report_progress
        self._need = demand(profile, load)

    def smallest(self, most: int, *, split: bool) -> FleetOutcome | None:
        """The smallest fleet of up to `most` workers that meets the target: by doubling, then by
        halving what is between, for more workers never meet it less, save by noise."""
        low, high = 0, 2 if split else 1
        found = self.best(high, split=split)
        while not self._meets(found):
            if high >= most:
                return None
            low, high = high, min(2 * high, most)
            found = self.best(high, split=split)
        while high - low > 1:
            middle = (low + high) // 2
            tried = self.best(middle, split=split)
            if self._meets(tried):
                high, found = middle, tried
            else:
                low = middle
        return found

    def best(self, workers: int, *, split: bool) -> FleetOutcome | None:
        """Of one size. Among the splits, a climb from the one whose phases are equally busy."""
        if not split:
            shapes = whole(workers, self._need)
            return self._play(shapes[0]) if shapes else None
        shapes = splits(workers, self._need)
        if not shapes:
            return None
        busy = self._need.prefill / max(1e-9, self._need.prefill + self._need.decode)
        at = min(range(len(shapes)), key=lambda i: abs(shapes[i].prefills - busy * workers))
        top = self._play(shapes[at])
        for step in (1, -1):
            place = at + step
            while 0 <= place < len(shapes):
                tried = self._play(shapes[place])
                if merit(tried) <= merit(top):
                    break
                top, place = tried, place + step
        return top

    def _meets(self, outcome: FleetOutcome | None) -> bool:
        return outcome is not None and outcome.attainment >= self._target

    def _play(self, shape: FleetShape) -> FleetOutcome:
        if shape not in self.played:
            self._report_progress(f"playing {shape.name}")
            self.played[shape] = play(shape, self._profile, self._load)
        return self.played[shape]


def search(
    profile: Profile,
    load: TargetLoad,
    target: float,
    most: int,
    report_progress: Callable[[str], None],
) -> Search:
    """The smallest fleet of each kind; the second kind up to BEYOND more workers than the first."""
    searcher = Searcher(profile, load, target, report_progress)
    replicated = searcher.smallest(most, split=False)
    limit = min(most, replicated.shape.workers + BEYOND) if replicated else most
    split = searcher.smallest(max(2, limit), split=True)
    played = sorted(searcher.played.values(), key=lambda o: (o.shape.workers, o.shape.prefills))
    return Search(played, split, replicated)


def choose(found: Search) -> FleetOutcome | None:
    """Fewer workers; with as many, replicated unless disaggregation is clearly better."""
    split, other = found.split, found.replicated
    if split is None or other is None:
        return split or other
    if split.shape.workers != other.shape.workers:
        return split if split.shape.workers < other.shape.workers else other
    return split if better(split, other) else other


def better(split: FleetOutcome, other: FleetOutcome) -> bool:
    return (
        split.ttft_ms.p90 < CLEAR * other.ttft_ms.p90 or split.itl_ms.p99 < CLEAR * other.itl_ms.p99
    )


def reason(found: Search, taken: FleetOutcome, target: float) -> str:
    """One sentence: whether to disaggregate, and why."""
    other = found.replicated if taken.shape.split else found.split
    name = (
        f"Disaggregate: {taken.shape.name}" if taken.shape.split else f"Stay {_replicated(taken)}"
    )
    kind = "replicated" if taken.shape.split else "disaggregated"
    if other is None:
        return (
            f"{name}. No {kind} fleet of a similar size meets the SLO for {target:.0%} of requests."
        )
    if other.shape.workers != taken.shape.workers:
        return (
            f"{name}. It takes {taken.shape.workers} workers, {other.shape.name} would be needed."
        )
    numbers = (
        f"TTFT p90 {taken.ttft_ms.p90:.0f} ms against {other.ttft_ms.p90:.0f}, ITL p99 "
        f"{taken.itl_ms.p99:.1f} ms against {other.itl_ms.p99:.1f}"
    )
    if taken.shape.split:
        return f"{name}. As many workers as replicated would take, and better: {numbers}."
    return f"{name}. {other.shape.name} takes as many workers and is not clearly better: {numbers}."


def sensitivity(
    found: Search,
    taken: FleetOutcome,
    profile: Profile,
    load: TargetLoad,
    report_progress: Callable[[str], None],
) -> list[Line]:
    """Both kinds with as many workers as were chosen, one thing changed at a time."""
    split = found.split.shape if found.split else _best(found.played, split=True)
    replicated = FleetShape(0, taken.shape.workers)
    longest = profile.prefill_curve[-1][0] if profile.prefill_curve else profile.max_model_len
    lines = []
    for times in NETWORKS:
        changed = with_network(profile, times)
        lines.append(
            _line(f"network x {times:g}", replicated, split, changed, load, report_progress)
        )
    for times in RATES:
        denser = scaled(load, rate=times)
        lines.append(
            _line(f"concurrency x {times:g}", replicated, split, profile, denser, report_progress)
        )
    for times in PROMPTS:
        longer = scaled(load, prompt=times)
        what = f"prompts x {times:g}"
        if max(a.prompt for a in longer.arrivals) > longest:
            lines.append(Line(what, None, None))
        else:
            lines.append(_line(what, replicated, split, profile, longer, report_progress))
    return lines


def _line(
    what: str,
    replicated: FleetShape,
    split: FleetShape | None,
    profile: Profile,
    load: TargetLoad,
    report_progress: Callable[[str], None],
) -> Line:
    report_progress(f"playing {what}")
    first = play(replicated, profile, load).attainment
    second = play(split, profile, load).attainment if split is not None else None
    return Line(what, first, second)


def _best(played: list[FleetOutcome], *, split: bool) -> FleetShape | None:
    known = [outcome for outcome in played if outcome.shape.split == split]
    return max(known, key=merit).shape if known else None


def merit(outcome: FleetOutcome) -> tuple[float, float]:
    return (outcome.attainment, -outcome.ttft_ms.p90)


def _replicated(taken: FleetOutcome) -> str:
    count = taken.shape.workers
    return "with a single worker" if count == 1 else f"replicated: {count} workers"

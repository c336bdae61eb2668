"""The smallest fleets that meet the SLO, which kind to take, and what would change the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import permutations

import msgspec

from loadtest.capacity.profile import Profile
from loadtest.plan.kinds import Kind, Pair
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

    #: All of them, by price.
    played: list[FleetOutcome]
    #: The cheapest disaggregated fleet that met the target.
    split: FleetOutcome | None
    #: The cheapest replicated fleet that met the target.
    replicated: FleetOutcome | None

    @property
    def found(self) -> list[FleetOutcome]:
        return [outcome for outcome in (self.replicated, self.split) if outcome is not None]


class Line(msgspec.Struct, frozen=True):
    """One changed assumption and the attainment of each kind of fleet; None = beyond the data of
    the profile, or no such fleet was played."""

    what: str
    replicated: float | None
    split: float | None


class Searcher:
    """Simulates each fleet of one pair of kinds once."""

    def __init__(
        self, pair: Pair, load: TargetLoad, target: float, report_progress: Callable[[str], None]
    ) -> None:
        #: The outcomes, in the order of simulation.
        self.played: dict[FleetShape, FleetOutcome] = {}
        self._pair = pair
        self._load = load
        self._target = target
        self._report_progress = report_progress
        self._need = demand(pair.profiles[0], load, pair.profiles[1])

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
            return self._play(self._named(shapes[0])) if shapes else None
        shapes = [self._named(shape) for shape in splits(workers, self._need)]
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

    def _named(self, shape: FleetShape) -> FleetShape:
        prefill, decode = self._pair
        return shape._replace(prefill_kind=prefill.name, decode_kind=decode.name)

    def _meets(self, outcome: FleetOutcome | None) -> bool:
        return outcome is not None and outcome.attainment >= self._target

    def _play(self, shape: FleetShape) -> FleetOutcome:
        if shape not in self.played:
            self._report_progress(f"playing {shape.name}")
            ours, theirs = self._pair.profiles
            outcome = play(shape, ours, self._load, theirs)
            price = shape.prefills * self._pair.prefill.price
            price += shape.decodes * self._pair.decode.price
            self.played[shape] = msgspec.structs.replace(outcome, price=round(price, 9))
        return self.played[shape]


def search(
    kinds: Sequence[Kind],
    load: TargetLoad,
    target: float,
    most: int,
    report_progress: Callable[[str], None],
) -> Search:
    """The smallest fleet of each pair of kinds, and the cheapest of these. If all workers are of
    one kind, disaggregated ones have up to BEYOND more workers than the replicated one."""
    alike = [Searcher(Pair(kind, kind), load, target, report_progress) for kind in kinds]
    replicated = cheapest([searcher.smallest(most, split=False) for searcher in alike])
    unlike = permutations(kinds, 2)
    searchers = alike + [Searcher(Pair(*pair), load, target, report_progress) for pair in unlike]
    limit = most
    if replicated is not None and len(kinds) == 1:
        limit = max(2, min(most, replicated.shape.workers + BEYOND))
    split = cheapest([searcher.smallest(limit, split=True) for searcher in searchers])
    outcomes = [outcome for searcher in searchers for outcome in searcher.played.values()]
    played = sorted(outcomes, key=lambda o: (o.price, o.shape.workers, o.shape))
    return Search(played, split, replicated)


def cheapest(outcomes: Iterable[FleetOutcome | None]) -> FleetOutcome | None:
    met = [outcome for outcome in outcomes if outcome is not None]
    return min(met, key=lambda o: (o.price, -o.attainment), default=None)


def choose(found: Search) -> FleetOutcome | None:
    """The cheaper one; at the same price replicated unless disaggregation is clearly better."""
    split, other = found.split, found.replicated
    if split is None or other is None:
        return split or other
    if split.price != other.price:
        return split if split.price < other.price else other
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
    kinds = bool(taken.shape.decode_kind)
    if other is None:
        size = "" if kinds else " of a similar size"
        return f"{name}. No {kind} fleet{size} meets the SLO for {target:.0%} of requests."
    if other.price != taken.price:
        if kinds:
            costs = f"It costs {taken.price:g} an hour, {other.shape.name} {other.price:g}"
            return f"{name}. {costs}."
        return (
            f"{name}. It takes {taken.shape.workers} workers, {other.shape.name} would be needed."
        )
    take, as_much = ("cost", "As much") if kinds else ("take", "As many workers")
    numbers = (
        f"TTFT p90 {taken.ttft_ms.p90:.0f} ms against {other.ttft_ms.p90:.0f}, ITL p99 "
        f"{taken.itl_ms.p99:.1f} ms against {other.itl_ms.p99:.1f}"
    )
    if taken.shape.split:
        return f"{name}. {as_much} as replicated would {take}, and better: {numbers}."
    beside = f"{other.shape.name} {take}s {as_much.lower()} and is not clearly better"
    return f"{name}. {beside}: {numbers}."


def sensitivity(
    found: Search,
    taken: FleetOutcome,
    kinds: Sequence[Kind],
    load: TargetLoad,
    report_progress: Callable[[str], None],
) -> list[Line]:
    """Both kinds of fleets, one thing changed at a time: the one that was taken, and of the other
    one with as many workers, if there is one kind of worker, or else the best that was played."""
    split = found.split.shape if found.split else _best(found.played, split=True)
    replicated: FleetShape | None = FleetShape(0, taken.shape.workers)
    if len(kinds) > 1:
        whole_fleet = found.replicated.shape if found.replicated else None
        replicated = whole_fleet or _best(found.played, split=False)
    longest = min([_longest(kind.profile) for kind in kinds])
    changes: list[tuple[str, float, TargetLoad | None]] = [
        *((f"network x {times:g}", times, load) for times in NETWORKS),
        *((f"concurrency x {times:g}", 1.0, scaled(load, rate=times)) for times in RATES),
    ]
    for times in PROMPTS:
        longer = scaled(load, prompt=times)
        known = max(a.prompt for a in longer.arrivals) <= longest
        changes.append((f"prompts x {times:g}", 1.0, longer if known else None))
    lines = []
    for what, network, changed in changes:
        report_progress(f"playing {what}")
        shares = [
            _attained(shape, kinds, network, changed) if shape and changed else None
            for shape in (replicated, split)
        ]
        lines.append(Line(what, *shares))
    return lines


def _longest(profile: Profile) -> int:
    """The longest prompt of which the profile knows how long it takes."""
    return profile.prefill_curve[-1][0] if profile.prefill_curve else profile.max_model_len


def _attained(shape: FleetShape, kinds: Sequence[Kind], network: float, load: TargetLoad) -> float:
    named = {kind.name: kind for kind in kinds}
    pair = Pair(named[shape.prefill_kind], named[shape.decode_kind])
    ours, theirs = (with_network(profile, network) for profile in pair.profiles)
    return play(shape, ours, load, theirs).attainment


def _best(played: list[FleetOutcome], *, split: bool) -> FleetShape | None:
    known = [outcome for outcome in played if outcome.shape.split == split]
    return max(known, key=merit).shape if known else None


def merit(outcome: FleetOutcome) -> tuple[float, float]:
    return (outcome.attainment, -outcome.ttft_ms.p90)


def _replicated(taken: FleetOutcome) -> str:
    count = taken.shape.workers
    if taken.shape.decode_kind:
        return f"replicated: {count} {taken.shape.decode_kind}"
    return "with a single worker" if count == 1 else f"replicated: {count} workers"

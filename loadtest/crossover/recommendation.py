"""One sentence from the ratios of disaggregated to replicated by concurrency."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.crossover.ratio import Ratio


def sentence(by_concurrency: Mapping[int, Ratio]) -> str:
    """`by_concurrency` ascends. What was not shown counts for the simpler fleet, replicated."""
    known = list(by_concurrency)
    wins = [c for c in known if by_concurrency[c].sign > 0]
    losses = [c for c in known if by_concurrency[c].sign < 0]
    span = f"{known[0]} to {known[-1]} concurrent requests" if len(known) > 1 else f"{known[0]}"
    if not wins and not losses:
        return f"Stay replicated: no difference could be shown at {span}, and it is simpler."
    if not wins:
        return f"Stay replicated: disaggregation never paid at {span}{_worst(by_concurrency)}."
    if len(wins) == len(known):
        return f"Disaggregate: it paid at all of {span}{_best(by_concurrency)}."
    first, last = known.index(wins[0]), known.index(wins[-1])
    if wins == known[first:]:
        return (
            f"Stay replicated below {wins[0]} concurrent requests; disaggregate from there on"
            f"{_best(by_concurrency)}."
        )
    if wins == known[: last + 1]:
        return (
            f"Disaggregate up to {wins[-1]} concurrent requests{_best(by_concurrency)}; stay "
            "replicated above."
        )
    if wins == known[first : last + 1]:
        return (
            f"Disaggregate between {wins[0]} and {wins[-1]} concurrent requests"
            f"{_best(by_concurrency)}; stay replicated outside."
        )
    named = ", ".join(map(str, wins))
    return f"No clear line: disaggregation paid at {named} concurrent requests and not between."


def _best(ratios: Mapping[int, Ratio]) -> str:
    top = max(ratios, key=lambda c: ratios[c].value)
    return f" ({ratios[top].value:.2f} times as good at {top})"


def _worst(ratios: Mapping[int, Ratio]) -> str:
    low = min(ratios, key=lambda c: ratios[c].value)
    return f" ({ratios[low].value:.2f} times as good at {low})"

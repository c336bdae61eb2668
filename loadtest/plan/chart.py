"""A plan as a picture: what each fleet reaches, and what the answer depends on."""

from __future__ import annotations

from loadtest.plan.search import Line, Search
from loadtest.show.plots import BLUE, ORANGE, RED, figure, headed, png, quiet


def plan(found: Search, changes: list[Line], target: float, sentence: str) -> bytes:
    """PNG."""
    made = figure(10.5, 4.4)
    left, right = made.subplots(1, 2, width_ratios=(3, 2))
    names = [outcome.shape.name for outcome in found.played]
    colours = [ORANGE if outcome.shape.split else BLUE for outcome in found.played]
    left.bar(names, [outcome.attainment for outcome in found.played], color=colours)
    left.axhline(target, color=RED, lw=1, ls="--")
    left.set_ylim(0, 1.02)
    left.tick_params(axis="x", rotation=60)
    quiet(left, "share of requests within the SLO, by fleet", "", "")
    places = range(len(changes))
    for shift, colour, label, shares in (
        (-0.2, BLUE, "replicated", [line.replicated for line in changes]),
        (0.2, ORANGE, "disaggregated", [line.split for line in changes]),
    ):
        widths = [0.0 if share is None else share for share in shares]
        right.barh([p + shift for p in places], widths, height=0.38, color=colour, label=label)
    right.set_yticks(list(places), [line.what for line in changes])
    right.invert_yaxis()
    right.axvline(target, color=RED, lw=1, ls="--")
    right.set_xlim(0, 1.02)
    made.legend(*right.get_legend_handles_labels(), fontsize=8, frameon=False, loc="lower right")
    quiet(right, "the same, if one thing changed", " ", "")
    headed(made, sentence)
    return png(made)

"""The runs: every fleet at every concurrency, in turn, again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from loadtest.bench import asks
from loadtest.bench.driver import Drive, Plan
from loadtest.bench.figures import Figures, figures
from loadtest.bench.prompts import Maker
from loadtest.capacity.report import Slo

SINGLE, REPLICATED, DISAGGREGATED = "single", "replicated", "disaggregated"
WARM_CONCURRENCY = 4


class Shape(msgspec.Struct, frozen=True):
    """Tokens of every request."""

    prompt: int
    output: int

    @property
    def name(self) -> str:
        return f"{self.prompt} in, {self.output} out"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet, once, at one concurrency."""

    fleet: str
    shape: Shape
    concurrency: int
    repeat: int
    figures: Figures


class Course(NamedTuple):
    """`requests`: of one cell at the least; a concurrency gets twice its own number."""

    shapes: Sequence[Shape]
    concurrencies: Sequence[int]
    repeats: int
    requests: int
    slo: Slo
    seed: int
    timeout: float

    @property
    def runs(self) -> int:
        """Of each fleet."""
        return len(self.shapes) * len(self.concurrencies) * self.repeats


class Stop:
    """Ends the runs before they are through; what was measured stays."""

    def __init__(self) -> None:
        self.asked = False
        self._drive: Drive | None = None

    def ask(self) -> None:
        self.asked = True
        if self._drive is not None:
            self._drive.stop("stopped")

    async def run(self, drive: Drive) -> None:
        self._drive = drive
        await drive.run()


async def run(
    urls: Mapping[str, str], model: str, course: Course, tell: Callable[[str], None], stop: Stop
) -> list[Cell]:
    """Stops early, with what it has, when asked and at the first cell in which a request failed."""
    for name, url in urls.items():
        tell(f"warming {name}")
        for shape in course.shapes:
            warm = _drive(url, model, _Turn(course.seed, 0, shape, WARM_CONCURRENCY), 12)
            await stop.run(warm)
            if stop.asked:
                return []
    cells: list[Cell] = []
    for repeat in range(course.repeats):
        for shape in course.shapes:
            for concurrency in course.concurrencies:
                for name in turned(list(urls), repeat):
                    tell(f"{repeat + 1} of {course.repeats}: {name}, {shape.name}, {concurrency}")
                    count = max(course.requests, 2 * concurrency)
                    turn = _Turn(course.seed, 1 + repeat, shape, concurrency)
                    drive = _drive(urls[name], model, turn, count, course.timeout)
                    await stop.run(drive)
                    if stop.asked:
                        return cells
                    told = figures(drive.samples, drive.gaps, course.slo, exact_prompts=True)
                    cells.append(
                        Cell(
                            fleet=name,
                            shape=shape,
                            concurrency=concurrency,
                            repeat=repeat,
                            figures=told,
                        )
                    )
                    if told.failed:
                        return cells
    return cells


def turned(names: list[str], repeat: int) -> list[str]:
    """Another one first each time."""
    at = repeat % len(names)
    return names[at:] + names[:at]


class _Turn(NamedTuple):
    """What the prompts of a cell depend on: the same for all fleets, new in each repeat, so that no
    cache helps."""

    seed: int
    repeat: int
    shape: Shape
    concurrency: int


def _drive(url: str, model: str, turn: _Turn, requests: int, timeout: float = 600.0) -> Drive:
    shape = turn.shape
    seed = f"{turn.seed}.{turn.repeat}.{turn.concurrency}.{shape.prompt}.{shape.output}"
    load = islice(asks.fixed(shape.prompt, shape.output, seed), requests)
    return Drive(Plan(url, Maker(model), concurrency=turn.concurrency, timeout=timeout), load)

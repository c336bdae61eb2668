"""The runs: every fleet at every concurrency, interleaved and repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from loadtest.bench import request_specs
from loadtest.bench.driver import LoadPlan, LoadRun
from loadtest.bench.figures import Figures, figures
from loadtest.bench.prompts import Maker
from loadtest.capacity.report import Slo

SINGLE, REPLICATED, DISAGGREGATED = "single", "replicated", "disaggregated"
WARM_CONCURRENCY = 4


class RequestLengths(msgspec.Struct, frozen=True):
    """Tokens of every request."""

    prompt: int
    output: int

    @property
    def name(self) -> str:
        return f"{self.prompt} in, {self.output} out"


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet, once, at one concurrency."""

    fleet: str
    shape: RequestLengths
    concurrency: int
    repeat: int
    figures: Figures


class CrossoverPlan(NamedTuple):
    """All runs of a comparison."""

    shapes: Sequence[RequestLengths]
    concurrencies: Sequence[int]
    repeats: int
    #: Minimum of requests in a run; a concurrency has at least twice its own number.
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
        self._load_run: LoadRun | None = None

    def ask(self) -> None:
        self.asked = True
        if self._load_run is not None:
            self._load_run.stop("stopped")

    async def run(self, load_run: LoadRun) -> None:
        self._load_run = load_run
        await load_run.run()


async def run(
    urls: Mapping[str, str],
    model: str,
    course: CrossoverPlan,
    report_progress: Callable[[str], None],
    stop: Stop,
) -> list[Cell]:
    """Stops early, with what it has, when asked and at the first cell in which a request failed."""
    for name, url in urls.items():
        report_progress(f"warming {name}")
        for shape in course.shapes:
            warm = _load_run(url, model, _Turn(course.seed, 0, shape, WARM_CONCURRENCY), 12)
            await stop.run(warm)
            if stop.asked:
                return []
    cells: list[Cell] = []
    for repeat in range(course.repeats):
        for shape in course.shapes:
            for concurrency in course.concurrencies:
                for name in turned(list(urls), repeat):
                    report_progress(
                        f"{repeat + 1} of {course.repeats}: {name}, {shape.name}, {concurrency}"
                    )
                    count = max(course.requests, 2 * concurrency)
                    turn = _Turn(course.seed, 1 + repeat, shape, concurrency)
                    load_run = _load_run(urls[name], model, turn, count, course.timeout)
                    await stop.run(load_run)
                    if stop.asked:
                        return cells
                    measured = figures(
                        load_run.samples, load_run.gaps, course.slo, exact_prompts=True
                    )
                    cells.append(
                        Cell(
                            fleet=name,
                            shape=shape,
                            concurrency=concurrency,
                            repeat=repeat,
                            figures=measured,
                        )
                    )
                    if measured.failed:
                        return cells
    return cells


def turned(names: list[str], repeat: int) -> list[str]:
    """Another one first each time."""
    at = repeat % len(names)
    return names[at:] + names[:at]


class _Turn(NamedTuple):
    """What the prompts of a run depend on. They are equal for all fleets and differ in each repeat,
    so that no cache helps."""

    seed: int
    repeat: int
    shape: RequestLengths
    concurrency: int


def _load_run(url: str, model: str, turn: _Turn, requests: int, timeout: float = 600.0) -> LoadRun:
    shape = turn.shape
    seed = f"{turn.seed}.{turn.repeat}.{turn.concurrency}.{shape.prompt}.{shape.output}"
    load = islice(request_specs.fixed(shape.prompt, shape.output, seed), requests)
    return LoadRun(LoadPlan(url, Maker(model), concurrency=turn.concurrency, timeout=timeout), load)

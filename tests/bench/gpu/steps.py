"""What handoffs beside it do to the steps of an engine: a loop of matrix products of some 10 ms.

Both ends share one card here. As two processes they compute in turns, and every change of turns
takes time of the steps; as threads of one process they share the interpreter, and the kernels and
copies of both ends take time of the steps of one. With a card for each end neither would be so.
"""

from __future__ import annotations

import statistics
import time

from tests.bench.gpu.engine import Engine
from tests.bench.gpu.handoffs import Handoffs, Settings, Stream, bench_geometry, paths_of
from tests.bench.gpu.pair import CUDA, Tools
from tests.bench.gpu.report import Outcome, Row, compared

STEPS = 60
SIDES = ("D", "P")
BASE = "the same without handoffs"
LOADS = {"a prompt of 64 MiB at a time": (64, 1), "four of 256 MiB at a time": (256, 4)}
CPU_LOADS = {"a prompt of 4 MiB at a time": (4, 1)}


def steps(tools: Tools, outcome: Outcome) -> None:
    geometry = bench_geometry(tools.device)
    loads = LOADS if tools.device == CUDA else CPU_LOADS
    engine, where = Engine(tools.device), "one process" if tools.together else "two processes"
    for path in paths_of(tools.device):
        with Handoffs(tools, Settings(path, geometry)) as handoffs:
            for side in SIDES:
                for name, (prompt_mib, in_flight) in loads.items():
                    blocks = prompt_mib * (1 << 20) // geometry.block_bytes
                    what = f"{path} path, {where}, on {side}, {name}"
                    rows = _beside(handoffs, engine, side, blocks, in_flight, what)
                    outcome.rows += rows
                    typical, slow, rate = rows
                    found = f"{typical.ratio:.3f} times, slow ones {slow.ratio:.3f} times"
                    print(f"  {what}: {found}, at {rate.value:.1f} GB/s", flush=True)


def _beside(
    handoffs: Handoffs, engine: Engine, side: str, blocks: int, in_flight: int, what: str
) -> list[Row]:
    """The steps with handoffs, the median and the ninth decile, against the same of the steps
    before and after them; and the rate of the handoffs meanwhile."""
    alone = _alone(handoffs, engine, side)
    stream = Stream(handoffs, blocks, in_flight)
    start = time.perf_counter()
    if side == "D":
        busy = engine.run(STEPS, stream.turn)
    else:
        handoffs.ask("steps", STEPS)
        stream.turn_until(lambda: bool(stream.answers))
        busy = stream.answers[0]
    rate = stream.moved_bytes / (time.perf_counter() - start) / 1e9
    stream.finish()
    alone += _alone(handoffs, engine, side)
    rows = [
        compared("steps", f"{what}: {name}", measure(busy), "ms", against=BASE, base=measure(alone))
        for name, measure in (("a step", _median_ms), ("nine of ten steps", _slow_ms))
    ]
    return [*rows, Row("steps", f"{what}: handoffs meanwhile", rate, "GB/s")]


def _median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1000


def _slow_ms(seconds: list[float]) -> float:
    """Nine of ten take no longer."""
    return statistics.quantiles(seconds, n=10)[-1] * 1000


def _alone(handoffs: Handoffs, engine: Engine, side: str) -> list[float]:
    if side == "D":
        return engine.run(STEPS // 2, lambda: None)
    answer: list[float] = handoffs.call("steps", STEPS // 2)
    return answer

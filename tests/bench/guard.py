"""The ratios that matter, each against something measured in the same run, and the committed ones.

`router`: the baseline (a request's four messages decoded, nothing decided) to the whole cycle of a
request at 64 workers. `gateway`: CPU per token of the floor to the gateway's. `kv`: time of raw
UCXX to the handoff's with digests, 16 MiB. More is better in all, 1 is the least there could be.
A fall of more than 15 % below `ratios.toml` is shouted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from tests.bench.gateway.rig import Rig, rig
from tests.bench.kv import TRANSPORTS, interleaved, measured_moves
from tests.bench.kv_paths import BLOCK_BYTES, Handoffs, Raw, serve
from tests.simulation.router_speed import QUEUE, Drive, baseline, best

COMMITTED = Path(__file__).with_name("ratios.toml")
FALL = 0.15
ROUNDS = 7
WORKERS = 64
STREAMS, TOKENS = 256, 128
KV_BYTES = 16 << 20


def main() -> None:
    show(measure(), committed())


def show(found: dict[str, float], kept: dict[str, float]) -> list[str]:
    """Prints a line for each; returns what fell."""
    fell = []
    for name, value in found.items():
        before = kept.get(name)
        if before is None:
            print(f"{name:<10}{value:8.3f}   nothing committed to compare with")
            continue
        change = value / before - 1
        print(f"{name:<10}{value:8.3f}   committed {before:.3f}, {change:+.0%}")
        if change < -FALL:
            fell.append(name)
            print(f"!!! {name.upper()} FELL BY {-change:.0%}: WHAT MADE IT SLOWER? !!!")
    return fell


def committed() -> dict[str, float]:
    ratios: dict[str, float] = tomllib.loads(COMMITTED.read_text(encoding="utf-8"))
    return ratios


def measure() -> dict[str, float]:
    parts: dict[str, Callable[[], float]] = {"router": router, "gateway": gateway, "kv": kv}
    return {name: part() for name, part in parts.items()}


def router() -> float:
    load = Drive(WORKERS)
    while len(load.core.tables.waiting) < QUEUE:
        load.submit()
    return median(baseline() / best(load.cycle) for _ in range(ROUNDS))


def gateway() -> float:
    """Floor and gateway in turn."""
    with rig(0) as floor, rig(1) as ours:
        for each_rig in (floor, ours):
            each_rig.measure(32, 16, 0.0)
        return median(_token_cpu(floor) / _token_cpu(ours) for _ in range(ROUNDS))


def _token_cpu(running: Rig) -> float:
    return running.measure(STREAMS, TOKENS, 0.0).cpu


def kv() -> float:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=serve, args=(theirs, TRANSPORTS[0]), daemon=True)
    child.start()
    kv_address, raw_port = ours.recv()
    assert child.pid is not None
    handoffs = Handoffs(ours, child.pid, kv_address, TRANSPORTS[0])
    raw = Raw(ours, child.pid, raw_port, TRANSPORTS[0])
    blocks = KV_BYTES // BLOCK_BYTES
    paths = {
        "raw": measured_moves(partial(raw.move, blocks)),
        "handoff": measured_moves(partial(handoffs.move, blocks)),
    }
    figures = interleaved(paths, 1)
    handoffs.close()
    ours.send(("exit",))
    child.join(5)
    return figures["raw"].seconds / figures["handoff"].seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="keep these from now on")
    if parser.parse_args().record:
        head = COMMITTED.read_text(encoding="utf-8").splitlines()[0]
        lines = [head, *[f"{name} = {value:.3f}" for name, value in measure().items()]]
        COMMITTED.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        main()

"""`python -m tests.bench.kv_against DIR`: handoffs of this checkout and of another one, in turns.

The checkout in `DIR` needs no environment of its own: its code runs with the packages of this one.
Each has a pair of processes; for each size a round moves it with both, in a random order. So both
meet the same moments of a noisy machine, and the median of the rounds' ratios tells them apart by a
few percent. Where processes begin in memory makes as much of a difference: `--pairs` begins anew.
Above 1 this checkout is faster, or takes less CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.kv import TRANSPORTS
from tests.bench.kv_paths import BLOCK_BYTES, Handoffs, serve

HERE = Path(__file__).parents[2]
SIZES = (1, 4, 16, 64, 256)
ROUND_BYTES = 16 << 20
MOVE = "--move"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.kv_against", description=__doc__)
    parser.add_argument("other", metavar="DIR", type=Path, help="root of the other checkout")
    parser.add_argument("--rounds", type=int, default=15, help="of each size (%(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="of processes (%(default)s)")
    options = parser.parse_args()
    print("transports       MiB  speed   CPU   of each pair")
    for transports in TRANSPORTS:
        found = [compare(options.other, transports, options.rounds) for _ in range(options.pairs)]
        for blocks in SIZES:
            speed = statistics.geometric_mean([pair[blocks][0] for pair in found])
            cpu = statistics.geometric_mean([pair[blocks][1] for pair in found])
            each = " ".join(f"{pair[blocks][0]:.2f}" for pair in found)
            size = blocks * BLOCK_BYTES / (1 << 20)
            print(f"{transports:<12} {size:7.2f} {speed:6.3f} {cpu:6.3f}  {each}", flush=True)


def compare(other: Path, transports: str, rounds: int) -> dict[int, tuple[float, float]]:
    """By blocks: the medians of the other's seconds to ours, and of its CPU to ours."""
    ratios = {}
    with mover(HERE, transports) as ours, mover(other, transports) as theirs:
        for blocks in SIZES:
            samples = [in_turn(ours, theirs, blocks) for _ in range(rounds)]
            speed, cpu = ([before[i] / now[i] for now, before in samples] for i in (0, 1))
            ratios[blocks] = (statistics.median(speed), statistics.median(cpu))
    return ratios


def in_turn(
    ours: subprocess.Popen[str], theirs: subprocess.Popen[str], blocks: int
) -> tuple[list[float], list[float]]:
    """Seconds and CPU seconds of a move of each."""
    movers = [ours, theirs]
    found = {mover.pid: moved(mover, blocks) for mover in random.sample(movers, 2)}
    return found[ours.pid], found[theirs.pid]


def moved(mover: subprocess.Popen[str], blocks: int) -> list[float]:
    assert mover.stdin is not None
    assert mover.stdout is not None
    mover.stdin.write(f"{blocks}\n")
    mover.stdin.flush()
    return [float(word) for word in mover.stdout.readline().split()]


@contextmanager
def mover(root: Path, transports: str) -> Iterator[subprocess.Popen[str]]:
    """This file with the code of that checkout."""
    with subprocess.Popen(
        [sys.executable, __file__, MOVE, transports],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"the handoffs of {root} do not start; see above")
        yield process


def move_as_asked(transports: str) -> None:
    """Blocks on stdin; means of seconds and CPU seconds of one move on stdout."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=serve, args=(theirs, transports), daemon=True)
    child.start()
    address, _ = ours.recv()
    assert child.pid is not None
    handoffs = Handoffs(ours, child.pid, address, transports)
    print("ready", flush=True)
    for line in sys.stdin:
        blocks = int(line)
        count = max(1, ROUND_BYTES // (blocks * BLOCK_BYTES))
        samples = [handoffs.move(blocks) for _ in range(count + 1)][1:]
        seconds = statistics.fmean(sample.seconds for sample in samples)
        cpu_seconds = statistics.fmean(sample.cpu_seconds for sample in samples)
        print(seconds, cpu_seconds, flush=True)
    ours.send(("exit",))
    handoffs.close()


if __name__ == "__main__":
    if sys.argv[1:2] == [MOVE]:
        move_as_asked(sys.argv[2])
    else:
        main()

"""KV handoff, blocks to blocks with digests, against raw UCXX, NIXL and memcpy in the same run.

A handoff is measured from D's asking for a prompt that P has offered and computed, as NIXL's is
from D's reading of what it knows to be there.

Two processes of each kind on this host; a round moves every path for each size, one after the
other, so that what else the machine does falls on all alike. Printed are medians over the rounds
and the spread between the quartiles. CPU is of all threads of both processes, the mean over the
rounds. NIXL's processes are stopped while others are measured, for its progress thread spins: at
the end of each run stands what each keeps busy while nothing moves.

`raw`: tagged UCXX messages of the handoff's size, as many in flight or more, over the same
transports, out of one buffer into those few, which stay in the caches. `raw spread`: the same out
of and into as much memory as the handoff reads and writes: what UCX alone takes to move these
bytes. `no digest`: the handoff with copies that do not sum up what they copy. `nixl`: see
`kv_nixl`; its UCX is its own and may choose other transports of the list, so a second run over TCP
alone follows, and `kv_wire` runs it over slower wires. Verdicts against the targets end each run.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np

from tests.bench.kv_paths import BLOCK_BYTES, Handoffs, Nixl, Raw, Sample, measured, serve
from tests.bench.kv_verdict import Figures, Row, verdicts

SIZES = (1, 4, 16, 64, 256)
ROUNDS = 9
ROUND_BYTES = 8 << 20
QUIET_LOAD = 0.3
GIGA = 1e9
TRANSPORTS = ("tcp,sm,self", "tcp,self")
Moves = Callable[[int], list[Sample]]
"""Moves so many times, and returns what each cost."""


def main() -> None:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > QUIET_LOAD * cores:
        print(f"load {load:.1f} on {cores} cores: trust CPU s/GB, not the times")
    for transports in TRANSPORTS:
        compare(transports)


def compare(transports: str) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=serve, args=(theirs, transports), daemon=True)
    child.start()
    kv_address, raw_port = ours.recv()
    assert child.pid is not None
    handoffs = Handoffs(ours, child.pid, kv_address, transports)
    raw = Raw(ours, child.pid, raw_port, transports)
    nixl = Nixl.start(transports)
    print(f"UCX_TLS={transports}")
    print(
        "     MiB       path       ms   quartiles    GB/s  CPU s/GB  of raw  its CPU  of nixl  "
        "of memcpy"
    )
    rows = []
    for blocks in SIZES:
        size = blocks * BLOCK_BYTES
        paths: dict[str, Moves] = {
            "memcpy": measured_moves(memcpy(size)),
            "raw": measured_moves(partial(raw.move, blocks)),
            "raw spread": measured_moves(partial(raw.move, blocks, spread=True)),
            "handoff": measured_moves(partial(handoffs.move, blocks)),
            "no digest": measured_moves(partial(handoffs.move, blocks, mode="off")),
        }
        if isinstance(nixl, Nixl):
            paths["nixl"] = partial(nixl.moves, blocks)
        figures = interleaved(paths, max(1, ROUND_BYTES // size))
        rows.append(Row(size, figures, handoffs.digest_seconds(blocks)))
        show(rows[-1])
    print(f"cores busy while nothing moves: handoff {handoffs.idle_cores():.2f}", end="")
    print(f", nixl {nixl.idle_cores():.2f}" if isinstance(nixl, Nixl) else "")
    handoffs.close()
    ours.send(("exit",))
    child.join(5)
    if isinstance(nixl, Nixl):
        nixl.close()
    else:
        print(f"nixl was not measured: {nixl}")
    print("\n".join(verdicts(rows)))


def measured_moves(move: Callable[[], Sample]) -> Moves:
    """After one that does not count."""
    return lambda count: [move() for _ in range(count + 1)][1:]


def interleaved(paths: dict[str, Moves], moves: int) -> dict[str, Figures]:
    """Medians of one move, of CPU the mean, over rounds of `moves` moves of each path, each time
    in another order: a path finds in the caches what the one before has left there."""
    order, random = list(paths), Random(1)
    for path in paths.values():
        path(1)
    rounds: dict[str, list[Sample]] = {name: [] for name in paths}
    for _ in range(ROUNDS):
        random.shuffle(order)
        for name in order:
            samples = paths[name](moves)
            seconds = sum(sample.seconds for sample in samples) / moves
            cpu_seconds = sum(sample.cpu_seconds for sample in samples) / moves
            rounds[name].append(Sample(seconds, cpu_seconds))
    figures = {}
    for name, samples in rounds.items():
        low, middle, high = statistics.quantiles([one.seconds for one in samples], n=4)
        cpu = statistics.fmean(one.cpu_seconds for one in samples)
        figures[name] = Figures(middle, low, high, cpu)
    return figures


def memcpy(size: int) -> Callable[[], Sample]:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return lambda: measured(lambda: np.copyto(target, source), ())


def show(row: Row) -> None:
    for name, path in row.paths.items():
        of_nixl = f"{row.speed_of(name, 'nixl'):8.2f}x" if "nixl" in row.paths else f"{'':9}"
        print(
            f"{row.size / (1 << 20):8.2f} {name:>10} {path.seconds * 1000:8.2f} "
            f"{path.low * 1000:6.2f}-{path.high * 1000:<7.2f}{row.size / path.seconds / GIGA:6.2f} "
            f"{path.cpu_seconds / (row.size / GIGA):9.2f} {row.speed_of(name, 'raw'):7.0%} "
            f"{row.cpu_of(name, 'raw'):>8} {of_nixl}{row.speed_of(name, 'memcpy'):10.0%}"
        )
    off = row.speed_of("no digest", "handoff") - 1
    print(
        f"{'':8} digests add {row.digest_of_time:.1%} of the handoff's time to the copies of both "
        f"ends, {row.digest_of_cpu:.1%} of its CPU (on against off {off:+.1%})"
    )


if __name__ == "__main__":
    compare(sys.argv[1])

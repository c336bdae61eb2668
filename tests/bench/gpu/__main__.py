"""`make gpu`: correctness and speed of the KV handoff on a GPU of this host, in two processes.

Nothing of vLLM is needed. Where it is installed, `make bench ARGS=matrix` compares the tokens of
both roles, and `baton bench crossover` finds from which prompt on a handoff pays.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import time
from pathlib import Path

import msgspec

from tests.bench.gpu import correctness, handoffs, kernels, raw, steps, store, timings
from tests.bench.gpu.about import unusable
from tests.bench.gpu.pair import CPU, CUDA, Part, run
from tests.bench.gpu.report import Outcome, Results, markdown, read, text_table

OUT = Path("build/gpu.json")
TOTAL_S = 225.0
"""The run is over then, whatever is left."""
PARTS = (
    Part("correctness", correctness.check, handoffs.serve, 70.0),
    Part("copies", kernels.copies, None, 30.0),
    Part("kernels", kernels.kernels, None, 45.0),
    Part("store", store.store, None, 40.0),
    Part("raw", raw.receive, raw.send, 60.0),
    Part("throughput", timings.throughput, handoffs.serve, 50.0),
    Part("latency", timings.latency, handoffs.serve, 50.0),
    Part("steps", steps.steps, handoffs.serve, 50.0, together=True),
    Part("steps-apart", steps.steps, handoffs.serve, 50.0),
    Part("nvml", kernels.nvml, None, 25.0),
)
NEED_A_CARD = frozenset({"copies", "kernels", "nvml"})
FAILED, NO_GPU, INTERRUPTED = 1, 2, 130


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    if asked.table is not None:
        return _print_table(asked.table)
    why = "" if asked.host else unusable()
    if why:
        print(f"make gpu: {why}", file=sys.stderr)
        return NO_GPU
    device = CPU if asked.host else CUDA
    results = Results()
    chosen = [
        part
        for part in PARTS
        if (not asked.only or part.name in asked.only)
        and (device == CUDA or part.name not in NEED_A_CARD)
    ]
    # A shell has it ignored by what it starts in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _run_all(chosen, device, results, asked.out)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        if results.parts:
            print(f"\n{text_table(results)}\n{asked.out} has all numbers.", flush=True)
    if importlib.util.find_spec("vllm") is not None:
        print(
            "vLLM is installed: `make bench ARGS=matrix` compares tokens, `baton bench crossover` "
            "finds from which prompt on a handoff pays."
        )
    return FAILED if results.faults else 0


def _run_all(parts: list[Part], device: str, results: Results, out: Path) -> None:
    """Writes the file anew after each part."""
    deadline = time.monotonic() + TOTAL_S
    for part in parts:
        left = deadline - time.monotonic()
        print(f"== {part.name}", flush=True)
        if left < 1.0:
            outcome = Outcome(failure=f"the {TOTAL_S:.0f} s of the run were over")
        else:
            outcome = run(part, device, tuple(results.rows), left)
        results.parts[part.name] = outcome
        print(f"  {outcome.failure or 'done'}, {outcome.seconds:.1f} s", flush=True)
        results.write(out)


def _print_table(path: Path) -> int:
    try:
        print(markdown(read(path)))
    except (OSError, msgspec.MsgspecError) as error:
        print(f"make gpu: {path} cannot be read: {error}", file=sys.stderr)
        return FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", action="append", choices=names, help="this part; may be repeated")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE", help=f"default {OUT}")
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="only print the Markdown table of such a file"
    )
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""What `baton plan` predicts for a fleet against what clients of that fleet see.

A fleet of one prefill and one decode worker is profiled, then asked by `baton bench`, ROUNDS times
with other requests, for an engine remembers prompts; the same arrivals are played over the profile.
The ratios are of medians: clients share the machine with the fleet, and on two cores a hiccup of
the one is the other's tail.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from loadtest import local_fleet
from loadtest.bench import arrivals, request_specs
from loadtest.bench.result import Result
from loadtest.capacity.profile import load as load_profile
from loadtest.capacity.report import Slo
from loadtest.capacity.workload import of_spec
from loadtest.plan.sizing import FleetOutcome, FleetShape, TargetLoad, play, within_data
from tests.rigs.processes import said

OFF = 0.20
SEED = 3


ROUNDS = 3
SLOW = {
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "40",
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "5000",
}
"""A model four times as large; `sim` has 10 ms and 20,000 tokens/s."""
ENGINES: dict[str, tuple[str, dict[str, str]]] = {
    "sim": ("sim", local_fleet.SIM),
    "sim-slow": ("sim", local_fleet.SIM | SLOW),
    "vllm": ("vllm", {}),
}
"""`--engine` of `baton up`, and its environment."""


class Case(NamedTuple):
    """`engine`: of ENGINES."""

    engine: str
    mix: str
    scale: float
    rate: float
    requests: int


CASES = (
    Case("sim", "code", 1.0, 4.0, 150),
    Case("sim", "chat", 1.0, 8.0, 200),
    Case("sim-slow", "code", 1.0, 1.0, 60),
    Case("sim-slow", "chat", 1.0, 2.0, 80),
    Case("vllm", "code", 0.3, 2.0, 60),
    Case("vllm", "chat", 0.5, 2.0, 60),
)


def main() -> None:
    compare(list(ENGINES))


def compare(chosen: Sequence[str]) -> None:
    head = "predicted / measured: TTFT p50, p90; output tokens/s"
    print(f"{'engine':<10}{'mix':<6}{'rate':>6}   {head}")
    for engine in chosen:
        kind, environ = ENGINES[engine]
        with (
            local_fleet.fleet(["--engine", kind], environ) as fleet,
            tempfile.TemporaryDirectory() as folder,
        ):
            profile = Path(folder) / "profile.toml"
            said("profile", *_at(fleet), "--prompt-max", "3000", "--out", str(profile))
            for case in (each for each in CASES if each.engine == engine):
                seeds = range(SEED, SEED + ROUNDS)
                measured = [_measured(case, seed, fleet, Path(folder)) for seed in seeds]
                _show(case, measured, [_predicted(case, seed, profile) for seed in seeds])


def _at(fleet: local_fleet.LocalFleet) -> tuple[str, ...]:
    return ("--url", fleet.url, "--run-dir", str(fleet.run_dir))


def _measured(case: Case, seed: int, fleet: local_fleet.LocalFleet, folder: Path) -> Result:
    path = folder / "result.json"
    load = ("--mix", case.mix, "--scale", str(case.scale), "--rate", str(case.rate))
    count = ("--requests", str(case.requests), "--seed", str(seed), "--quiet")
    said("bench", *_at(fleet), *load, *count, "--json", str(path))
    return msgspec.json.decode(path.read_bytes(), type=Result)


def _predicted(case: Case, seed: int, profile: Path) -> FleetOutcome:
    stream = arrivals.timed(
        request_specs.synthetic(case.mix, seed, case.scale), arrivals.poisson(case.rate, seed)
    )
    asked = list(map(of_spec, islice(stream, case.requests)))
    return play(FleetShape(1, 1), within_data(load_profile(profile)), TargetLoad(asked, Slo()))


def _show(case: Case, measured: list[Result], predicted: list[FleetOutcome]) -> None:
    seen = [each.all for each in measured]
    pairs = (
        (median(p.ttft_ms.p50 for p in predicted), median(m.ttft_ms.p50 for m in seen)),
        (median(p.ttft_ms.p90 for p in predicted), median(m.ttft_ms.p90 for m in seen)),
        (
            median(p.output_tokens_per_s for p in predicted),
            median(m.output_tokens_per_s for m in seen),
        ),
    )
    told = ", ".join(f"{a:.0f} / {b:.0f} = {a / b:.2f}" for a, b in pairs)
    off = any(abs(a / b - 1) > OFF for a, b in pairs)
    print(f"{case.engine:<10}{case.mix:<6}{case.rate:>6g}   {told}{'  OFF' if off else ''}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", nargs="*", help=f"of {', '.join(ENGINES)} (all)")
    compare(parser.parse_args().engine or list(ENGINES))

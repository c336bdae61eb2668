"""What `baton plan` predicts for a fleet against what clients of that fleet see.

A fleet of one prefill and one decode worker is profiled, then asked by `baton bench`; the same
arrivals are played over the profile. The ratios are predicted to measured.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest import local
from loadtest.bench import arrivals, asks
from loadtest.bench.result import Result
from loadtest.capacity.profile import load as load_profile
from loadtest.capacity.report import Slo
from loadtest.capacity.workload import Arrival
from loadtest.plan.sizing import Load, Outcome, Shape, play, within_data

OFF = 0.20
SEED = 3


class Case(NamedTuple):
    engine: str
    mix: str
    scale: float
    rate: float
    requests: int


CASES = (
    Case("sim", "code", 1.0, 4.0, 150),
    Case("sim", "chat", 1.0, 8.0, 200),
    Case("vllm", "code", 0.3, 2.0, 60),
    Case("vllm", "chat", 0.5, 2.0, 60),
)


def main() -> None:
    print(
        f"{'engine':<7}{'mix':<6}{'rate':>6}   predicted / measured: TTFT p50, p90; output tokens/s"
    )
    for engine in dict.fromkeys(case.engine for case in CASES):
        environ = local.SIM if engine == "sim" else {}
        with (
            local.fleet(["--engine", engine], environ) as fleet,
            tempfile.TemporaryDirectory() as folder,
        ):
            profile = Path(folder) / "profile.toml"
            _baton("profile", *_at(fleet), "--prompt-max", "3000", "--out", str(profile))
            for case in (each for each in CASES if each.engine == engine):
                _show(case, _measured(case, fleet, Path(folder)), _predicted(case, profile))


def _at(fleet: local.LocalFleet) -> tuple[str, ...]:
    return ("--url", fleet.url, "--run-dir", str(fleet.run_dir))


def _measured(case: Case, fleet: local.LocalFleet, folder: Path) -> Result:
    path = folder / "result.json"
    load = ("--mix", case.mix, "--scale", str(case.scale), "--rate", str(case.rate))
    count = ("--requests", str(case.requests), "--seed", str(SEED), "--quiet")
    _baton("bench", *_at(fleet), *load, *count, "--json", str(path))
    return msgspec.json.decode(path.read_bytes(), type=Result)


def _predicted(case: Case, profile: Path) -> Outcome:
    stream = arrivals.timed(
        asks.synthetic(case.mix, SEED, case.scale), arrivals.poisson(case.rate, SEED)
    )
    asked = [Arrival(a.at, a.prompt, a.output, a.output) for a in islice(stream, case.requests)]
    return play(Shape(1, 1), within_data(load_profile(profile)), Load(asked, Slo()))


def _show(case: Case, measured: Result, predicted: Outcome) -> None:
    of = measured.all
    pairs = (
        (predicted.ttft_ms.p50, of.ttft_ms.p50),
        (predicted.ttft_ms.p90, of.ttft_ms.p90),
        (predicted.output_tokens_per_s, of.output_tokens_per_s),
    )
    told = ", ".join(f"{a:.0f} / {b:.0f} = {a / b:.2f}" for a, b in pairs)
    off = any(abs(a / b - 1) > OFF for a, b in pairs)
    print(f"{case.engine:<7}{case.mix:<6}{case.rate:>6g}   {told}{'  OFF' if off else ''}")


def _baton(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

"""`python -m loadtest.capacity`: what would this fleet do with that load?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from textwrap import indent

import msgspec

from common.errors import ConfigError
from loadtest.capacity import growth
from loadtest.capacity.fleet import Scenario, run
from loadtest.capacity.overload import OverloadFleet, capacity_rps, overload
from loadtest.capacity.profile import Profile, load, text
from loadtest.capacity.report import Slo, lines
from loadtest.capacity.workload import Arrival, RequestShape, poisson, recorded
from loadtest.flags import count, positive
from loadtest.traces.reader import read
from loadtest.traces.rows import Reading
from services.router.settings import Settings

LAST = 1e-3
ABOUT = """\
Plays open-loop load against the production router core with modelled workers, in virtual time.

  python -m loadtest.capacity --prefill 4 --decode 8 --rate 40 --prompt 1500 --output 200
      TTFT, ITL, goodput and utilization of 4 + 8 workers at 40 requests/s
  python -m loadtest.capacity --prefill 2 --decode 2 --overload 1,2,4 --bound prefill
      goodput at multiples of what the fleet can just do
  python -m loadtest.capacity --prefill 1000 --decode 3000 --trace c.jsonl --speed 60 --scale 0.1
      a recorded trace (Mooncake JSONL, Azure CSV), 60 times as fast, lengths a tenth; where it
      says which prompts begin alike, prefix caches count
  python -m loadtest.capacity --grow 64,250,1000,4000 --trace c.jsonl --speed 60 --scale 0.1
      the same load on ever larger fleets: what a request costs the router, and where that bends

A profile is a TOML file of one worker's measured numbers; without one, these are used:
"""


def main(argv: list[str] | None = None) -> int:
    """The exit status: 2 for a profile or argument that cannot be used."""
    options = _parser().parse_args(argv)
    try:
        profile = load(options.profile) if options.profile else Profile()
        if options.overload:
            _overload(options, profile)
        elif options.grow:
            _grow(options, profile)
        else:
            _once(options, profile)
    except ConfigError as error:
        print(f"loadtest.capacity: {error.message}", file=sys.stderr)
        return 2
    return 0


def _once(options: argparse.Namespace, profile: Profile) -> None:
    arrivals = _arrivals(options, profile)
    seconds = arrivals[-1].at + LAST if options.trace else options.seconds
    report = run(
        Scenario(
            profile=profile,
            prefills=options.prefill,
            decodes=options.decode,
            arrivals=arrivals,
            seconds=seconds,
            slo=_slo(options),
            settings=Settings(max_queue=options.queue, ttft_slo_ms=options.slo_ttft_ms),
        )
    )
    if options.json:
        print(msgspec.json.encode(report).decode())
        return
    offered = len(arrivals) / seconds
    if options.trace:
        print(f"offered       {offered:.2f} requests/s over {seconds:.1f} s")
    else:
        can = _on_paper(options, profile)
        print(f"offered       {offered:.2f} requests/s; on paper the fleet can do {can:.2f}")
    print("\n".join(lines(report)))


def _arrivals(options: argparse.Namespace, profile: Profile) -> list[Arrival]:
    """Raises ConfigError for a trace that cannot be read. Bad rows are named on stderr."""
    if not options.trace:
        shape, rate = _shape(options), options.rate or _on_paper(options, profile)
        return list(poisson(rate, options.seconds, shape, options.seed))
    reading = Reading(str(options.trace))
    rows = read(options.trace, reading, options.requests or 0)
    arrivals = list(recorded(rows, speed=options.speed, scale=options.scale))
    for named in reading.named:
        print(f"bad row: {named}", file=sys.stderr)
    return arrivals


def _shape(options: argparse.Namespace) -> RequestShape:
    return RequestShape(options.prompt, options.output)


def _on_paper(options: argparse.Namespace, profile: Profile) -> float:
    grant = Settings().kv_grant_max
    return capacity_rps(profile, options.prefill, options.decode, _shape(options), grant)


def _grow(options: argparse.Namespace, profile: Profile) -> None:
    arrivals = _arrivals(options, profile)
    share = options.prefill / (options.prefill + options.decode)
    fleets = growth.Fleets(profile, arrivals, share)
    print(f"{len(arrivals)} requests in {arrivals[-1].at:.1f} s to each; one core of the router's")
    print(growth.head())
    for size in growth.grow(options.grow, fleets):
        print(growth.line(size), flush=True)


def _overload(options: argparse.Namespace, profile: Profile) -> None:
    bench = OverloadFleet(
        profile=profile,
        prefills=options.prefill,
        decodes=options.decode,
        seconds=options.seconds,
        slo=_slo(options),
        seed=options.seed,
    )
    settings = Settings(max_queue=options.queue, ttft_slo_ms=options.slo_ttft_ms)
    reports = [(n, overload(n, options.bound, settings, bench)) for n in options.overload]
    if options.json:
        print(msgspec.json.encode([report for _, report in reports]).decode())
        return
    peak = max(report.goodput_rps for _, report in reports) or 1.0
    print(f"{options.bound}-bound; goodput in requests/s, its share of the best row, SLO met")
    for times, report in reports:
        print(
            f"{times:4g} x  {report.goodput_rps:8.2f}  {report.goodput_rps / peak:5.0%}  "
            f"{report.attainment:6.1%}  refused {sum(report.refused.values())} of {report.requests}"
        )


def _slo(options: argparse.Namespace) -> Slo:
    return Slo(ttft_ms=options.slo_ttft_ms, tpot_ms=options.slo_tpot_ms)


def _parser() -> argparse.ArgumentParser:
    about = ABOUT + indent(text(Profile()), "  ")
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.capacity",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--profile", type=Path, help="TOML file with any of the keys above")
    add(
        "--prefill",
        type=_count_or_zero,
        default=2,
        help="prefill workers (2); 0 = all prefill is local",
    )
    add("--decode", type=count, default=2, help="decode workers (2)")
    add("--rate", type=positive, help="requests per second (what the fleet can do on paper)")
    add("--seconds", type=positive, default=30.0, help="virtual time measured (30)")
    add("--prompt", type=count, default=1_500, help="mean prompt tokens (1500)")
    add("--output", type=count, default=200, help="mean output tokens (200)")
    add("--queue", type=count, default=1_024, help="the router's max_queue (1024)")
    add("--slo-ttft-ms", type=positive, default=2_000.0, help="a good request's TTFT (2000)")
    add("--slo-tpot-ms", type=positive, default=100.0, help="a good request's TPOT (100)")
    add("--trace", type=Path, metavar="FILE", help="Mooncake JSONL or Azure CSV, for --rate")
    add("--speed", type=positive, default=1.0, help="with --trace: times as fast (1)")
    add("--scale", type=positive, default=1.0, help="with --trace: times all lengths (1)")
    add("--requests", type=count, help="with --trace: rows at most (all)")
    add("--grow", type=_sizes, metavar="N,N", help="fleets of so many workers, one table")
    add("--overload", type=_multiples, help="multiples of capacity, such as 1,2,3,4")
    add("--bound", choices=["prefill", "decode"], default="prefill", help="with --overload")
    add("--seed", type=int, default=1)
    add("--json", action="store_true", help="the whole report, for programs")
    return parser


def _count_or_zero(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _sizes(text: str) -> list[int]:
    sizes = [int(part) for part in text.split(",")]
    if min(sizes) < 2:
        raise argparse.ArgumentTypeError("a fleet has one P and one D at least")
    return sizes


def _multiples(text: str) -> list[float]:
    return [positive(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

"""`baton plan`: which fleet a load needs, by the production router over measured workers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from common.errors import ConfigError
from common.model.resolve import resolve_model
from loadtest.bench import arrivals, request_specs
from loadtest.capacity.profile import Profile
from loadtest.capacity.workload import Arrival, of_spec, recorded
from loadtest.flags import count, positive
from loadtest.plan import by_model, chart, formula, kinds, search
from loadtest.plan.kinds import Kind
from loadtest.plan.sizing import FleetOutcome, TargetLoad, within_data
from loadtest.slo import parse as parse_slo
from loadtest.slo import shown
from loadtest.traces.reader import read
from loadtest.traces.rows import Reading

OK, NONE, USAGE, BEYOND = 0, 1, 2, 4
HOURS = 3600.0
EPILOG = """\
examples:
  baton plan --profile profile.toml --trace conversation.jsonl --slo ttft=2000,itl=50
  baton plan --profile profile.toml --mix rag --rate 20 --slo ttft=1000,itl=40 --price 2.5
  baton plan --profile h100.toml --price 4 --profile l4.toml --price 0.8 --slo ttft=2000,itl=50
  baton plan --models models.toml --slo ttft=1000,itl=40

With several profiles, prefill workers may be of one kind and decode workers of another; the
cheapest fleet is taken.

With several models, FILE of --models has a table for each, named as the model; its keys are the
flags that differ for it, such as profile, trace, mix, rate and slo. Each model is planned alone:
the router keeps their queues and workers apart.

exit status: 0 a fleet was found, 1 none of up to --workers meets the SLO, 2 wrong command line,
4 the load lies beyond what the profile measured; of several models the highest
"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    sentence: str
    taken: FleetOutcome
    found: search.Search
    sensitivity: list[search.Line]


def main(argv: list[str]) -> int:
    try:
        models, shared = by_model.read(argv)
    except ConfigError as error:
        return _wrong(error)
    fleets: dict[str, by_model.Fleet] = {}
    status = OK
    for model, flags in models.items():
        chosen = _parser().parse_args(by_model.joined(shared, flags))
        if model:
            by_model.begin(model, chosen)
        answer = plan_one(chosen)
        if isinstance(answer, Plan):
            fleets[model] = by_model.Fleet(answer.taken.shape, answer.taken.price)
        else:
            status = max(status, answer)
    if len(fleets) == len(models) > 1:
        print(by_model.together(fleets))
    return status


def _wrong(error: ConfigError) -> int:
    print(f"baton plan: {error.message}", file=sys.stderr)
    return USAGE


def plan_one(chosen: argparse.Namespace) -> Plan | int:
    """The plan for one model, which is printed too, or the exit status that says why there is
    none."""
    reading = Reading(str(chosen.trace))
    try:
        known = [
            kind._replace(profile=_with_store(within_data(kind.profile), chosen))
            for kind in kinds.read(chosen.profile or [], chosen.price or [])
        ]
        load = TargetLoad(list(_arrivals(chosen, reading)), parse_slo(chosen.slo))
        if not (load.slo.ttft_ms or load.slo.tpot_ms):
            raise ConfigError("--slo", "say what a good answer is: ttft=MS,itl=MS")
        size = formula.of_profile(known[0].profile)
        if chosen.model:
            size = formula.of_model(resolve_model(chosen.model))
        answer = _plan(chosen, known, load, size)
    except ConfigError as error:
        return _wrong(error)
    for named in reading.named:
        print(f"bad row: {named}")
    return answer


def _plan(
    chosen: argparse.Namespace, known: list[Kind], load: TargetLoad, size: formula.KvSize
) -> Plan | int:
    beyond = list(filter(None, [_beyond(kind, load, assume=chosen.assume) for kind in known]))
    if beyond:
        print(f"baton plan: no recommendation: {beyond[0]}", file=sys.stderr)
        return BEYOND
    print("\n".join(formula.lines(size, known[0].profile, [a.prompt for a in load.arrivals])))
    target = chosen.attainment
    found = search.search(known, load, target, chosen.workers, _print_progress)
    print("\n".join(_head(chosen, known, load)))
    print("\n".join(_rows(found)))
    taken = search.choose(found)
    if taken is None:
        best = max((o.attainment for o in found.played), default=0.0)
        print(f"No fleet of up to {chosen.workers} workers meets it; the best reaches {best:.1%}.")
        return NONE
    sentence = search.reason(found, taken, target)
    changes = search.sensitivity(found, taken, known, load, _print_progress)
    print("\n".join(_sensitivity(changes)))
    stores = any(kind.profile.store_hit_share for kind in known)
    if stores or any(kind.profile.prefix_cache for kind in known):
        what = "prefix cache and store" if stores else "prefix cache"
        print(f"{what}: {taken.cached_share * 100:.0f} % of prompt tokens in {taken.shape.name}")
    print(sentence)
    plan = Plan(sentence=sentence, taken=taken, found=found, sensitivity=changes)
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.encode(plan))
    if chosen.png:
        chosen.png.write_bytes(chart.plan(found, changes, target, sentence))
    return plan


def _with_store(profile: Profile, chosen: argparse.Namespace) -> Profile:
    """Raises ConfigError."""
    changes: dict[str, float] = {}
    if chosen.store_hits is not None:
        if not 0 <= chosen.store_hits <= 1:
            raise ConfigError("--store-hits", "a share of each prompt, from 0 to 1")
        changes["store_hit_share"] = chosen.store_hits
    if chosen.store_rate is not None:
        changes["store_bytes_per_s"] = chosen.store_rate * (1 << 20)
    return msgspec.structs.replace(profile, **changes)


def _arrivals(chosen: argparse.Namespace, reading: Reading) -> Iterator[Arrival]:
    if chosen.trace:
        rows = read(chosen.trace, reading, chosen.requests)
        return recorded(rows, speed=chosen.speed, scale=chosen.scale)
    mixed = request_specs.synthetic(chosen.mix, chosen.seed, chosen.scale)
    instants = arrivals.poisson(chosen.rate, chosen.seed)
    return map(of_spec, islice(arrivals.timed(mixed, instants), chosen.requests))


def _beyond(kind: Kind, load: TargetLoad, *, assume: bool) -> str:
    """Why the profile cannot answer for this load, empty if it can."""
    profile, of = kind.profile, f" of {kind.name}" if kind.name else ""
    if not profile.measured:
        what = f"the profile{of} was not measured (no prefill_curve and decode_curve)"
        return "" if assume else f"{what}; run baton profile, or say --assume"
    longest = profile.prefill_curve[-1][0]
    over = [a.prompt for a in load.arrivals if a.prompt > longest]
    if over and not assume:
        return (
            f"{len(over)} of {len(load.arrivals)} prompts are longer than the longest that was "
            f"measured{of} ({longest} tokens; the trace has {max(over)}): baton profile "
            f"--prompt-max {max(over)}, or shorten the load with --scale"
        )
    return ""


def _head(chosen: argparse.Namespace, known: list[Kind], load: TargetLoad) -> Iterator[str]:
    rate = len(load.arrivals) / load.span
    what = chosen.trace.name if chosen.trace else f"mix {chosen.mix}"
    yield ""
    yield f"load     {what}: {len(load.arrivals)} requests at {rate:.2f}/s; SLO {shown(load.slo)}"
    for kind in known:
        measured = kind.profile.about.get("machine", "assumed numbers, not measured ones")
        named = f"{kind.name}, {kind.price:g} an hour: " if kind.name else ""
        yield f"profile  {named}{measured}"
    profile = known[0].profile
    if profile.store_hit_share:
        rate = profile.store_bytes_per_s / (1 << 20)
        yield (
            f"store    {profile.store_hit_share:.0%} of each prompt, out of stores at {rate:.0f} "
            "MiB/s: assumed, not measured"
        )
    if not profile.prefix_cache:
        yield "         prompts are computed whole: these workers cache no prefixes"
    yield ""


def _rows(found: search.Search) -> Iterator[str]:
    width = 2 + max([14, *(len(outcome.shape.name) for outcome in found.played)])
    yield (
        f"{'fleet':<{width}}{'met SLO':>9}{'TTFT p50':>10}{'p90':>9}{'TPOT p90':>10}{'ITL p99':>9}"
        f"{'P busy':>8}{'D busy':>8}{'cost/1M out':>13}"
    )
    for o in found.played:
        cost = o.price / HOURS / max(o.output_tokens_per_s, 1e-9) * 1e6
        taken = " <" if o in found.found else ""
        yield (
            f"{o.shape.name:<{width}}{o.attainment:>9.1%}{o.ttft_ms.p50:>10.0f}{o.ttft_ms.p90:>9.0f}"
            f"{o.tpot_ms.p90:>10.1f}{o.itl_ms.p99:>9.1f}{o.prefill_utilization:>8.0%}"
            f"{o.decode_utilization:>8.0%}{cost:>13.2f}{taken}"
        )


def _sensitivity(changes: list[search.Line]) -> Iterator[str]:
    yield ""
    yield f"{'if it changed':<20}{'replicated':>12}{'disaggregated':>15}"
    for line in changes:
        shares = (_share(line.replicated), _share(line.split))
        yield f"{line.what:<20}{shares[0]:>12}{shares[1]:>15}"
    yield ""


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


def _print_progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="\r", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton plan",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--models", type=Path, metavar="FILE", help="a plan for each model that it names")
    add(
        kinds.PROFILE,
        type=Path,
        action="append",
        metavar="FILE",
        help="by baton profile; once for each kind of worker that there may be",
    )
    add("--trace", type=Path, metavar="FILE", help="Mooncake JSONL or Azure CSV")
    add("--mix", choices=tuple(request_specs.MIXES), default="chat", help="without --trace (chat)")
    add("--rate", type=positive, default=5.0, help="with --mix: requests/s (5)")
    add("--speed", type=positive, default=1.0, help="trace: times as fast (1)")
    add("--scale", type=positive, default=1.0, help="times all lengths (1)")
    add("--requests", type=count, default=1_000, help="the first so many (1000)")
    add("--slo", required=True, help="ttft=MS,itl=MS")
    add("--attainment", type=positive, default=0.95, help="share that must meet it (0.95)")
    add("--store-hits", type=float, metavar="SHARE", help="of each prompt, in [kv.store] (0)")
    add("--store-rate", type=positive, metavar="MIB_S", help="at which it comes out of it (954)")
    add("--workers", type=count, default=16, help="the largest fleet (16)")
    add(
        kinds.PRICE,
        type=positive,
        action="append",
        help="of one worker for an hour; of several kinds once for each (1)",
    )
    add("--model", default="", metavar="PATH", help="prints its KV size formula")
    add("--assume", action="store_true", help="answer beyond what was measured, too")
    add("--seed", type=int, default=1)
    add("--json", type=Path, metavar="FILE", help="the whole answer, for programs")
    add("--png", type=Path, metavar="FILE", help="a picture of it")
    return parser

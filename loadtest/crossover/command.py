"""`baton bench crossover`, from the command line to the verdict."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import msgspec
import uvloop

from common.errors import ConfigError
from loadtest import local_fleet, provenance
from loadtest.bench import endpoint
from loadtest.crossover import chart, outcome
from loadtest.crossover.measure import (
    DISAGGREGATED,
    REPLICATED,
    SINGLE,
    Cell,
    CrossoverPlan,
    RequestLengths,
    Stop,
    run,
)
from loadtest.crossover.outcome import METRICS, Crossover, lines
from loadtest.flags import count, counts, positive
from loadtest.slo import parse as parse_slo
from loadtest.slo import shown

OK, FAILED, USAGE, DEAD = 0, 1, 2, 3
EPILOG = """\
Starts a fleet of each kind on this machine and stops them after; or give the endpoints of fleets
that run elsewhere. They share the machine, one is loaded at a time.

examples:
  baton bench crossover --engine sim --workers 4
  baton bench crossover --engine vllm --workers 2 --prompt 200,1500 --repeats 5
  baton bench crossover --endpoint replicated=http://a:8000 --endpoint disaggregated=http://b:8000
"""


def main(argv: list[str]) -> int:
    chosen = _parser().parse_args(argv)
    try:
        course = _course(chosen)
        with ExitStack() as stack:
            urls = _endpoints(chosen) or _started(chosen, stack)
            origin = provenance.collect()
            cells = uvloop.run(_run(urls, chosen, course))
    except ConfigError as error:
        return _complain(USAGE, error.message)
    except (endpoint.DeadEndpointError, local_fleet.FleetDownError) as error:
        return _complain(DEAD, str(error))
    if not cells:
        return _complain(FAILED, "stopped before anything was measured")
    planned = len(urls) * course.runs
    comparison = _comparison(chosen, argv, course, origin, cells, planned)
    print("\n".join(lines(comparison)))
    print(f"machine  {provenance.sentence(comparison.provenance)}")
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.encode(comparison))
    if chosen.png:
        chosen.png.write_bytes(chart.crossover(comparison))
    return FAILED if comparison.failed or comparison.partial else OK


async def _run(
    urls: dict[str, str], chosen: argparse.Namespace, course: CrossoverPlan
) -> list[Cell]:
    model = chosen.model
    longest = max(shape.prompt + shape.output for shape in course.shapes)
    for url in urls.values():
        served = await endpoint.discover(url, model, "")
        model = served.model
        if served.max_model_len and longest > served.max_model_len:
            raise ConfigError(
                "--prompt", f"{longest} tokens are more than {url} takes ({served.max_model_len})"
            )
    stop = Stop()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.ask)
    try:
        return await run(urls, model, course, _print_progress, stop)
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _course(chosen: argparse.Namespace) -> CrossoverPlan:
    slo = parse_slo(chosen.slo)
    if chosen.metric == "goodput" and not (slo.ttft_ms or slo.tpot_ms):
        raise ConfigError("--metric", "goodput needs --slo ttft=MS,itl=MS")
    return CrossoverPlan(
        shapes=[RequestLengths(*pair) for pair in product(chosen.prompt, chosen.output)],
        concurrencies=sorted(set(chosen.concurrency)),
        repeats=chosen.repeats,
        requests=chosen.requests,
        slo=slo,
        seed=chosen.seed,
        timeout=chosen.timeout,
    )


def _endpoints(chosen: argparse.Namespace) -> dict[str, str]:
    given = dict(pair.partition("=")[::2] for pair in chosen.endpoint)
    if given and not {REPLICATED, DISAGGREGATED} <= given.keys():
        raise ConfigError("--endpoint", f"{REPLICATED}=URL and {DISAGGREGATED}=URL are both needed")
    return {name: url.rstrip("/").removesuffix("/v1") for name, url in given.items()}


def _started(chosen: argparse.Namespace, stack: ExitStack) -> dict[str, str]:
    if chosen.workers < 2:
        raise ConfigError("--workers", "two are the least that can be divided")
    prefills = chosen.prefill or chosen.workers // 2
    if prefills >= chosen.workers:
        raise ConfigError("--prefill", f"of {chosen.workers} workers one at least must decode")
    decodes = chosen.workers - prefills
    engine = ["--engine", chosen.engine]
    flags = {
        SINGLE: ["--mode", "single"],
        REPLICATED: ["--mode", "replicated", "--decode", str(chosen.workers)],
        DISAGGREGATED: ["--prefill", str(prefills), "--decode", str(decodes)],
    }
    environ = local_fleet.SIM if chosen.engine == "sim" else None
    urls = {}
    for name, more in flags.items():
        _print_progress(f"starting {name}")
        urls[name] = stack.enter_context(local_fleet.fleet([*engine, *more], environ)).url
    return urls


def _comparison(
    chosen: argparse.Namespace,
    argv: list[str],
    course: CrossoverPlan,
    origin: provenance.Provenance,
    cells: list[Cell],
    planned: int,
) -> Crossover:
    prefills = chosen.prefill or chosen.workers // 2
    split = f"{prefills}P+{chosen.workers - prefills}D"
    here = f"{chosen.workers} workers ({split} against {chosen.workers} replicated)"
    kind = "simulated engines, no inference" if chosen.engine == "sim" else "vLLM"
    return Crossover(
        provenance=origin,
        command="baton bench crossover " + shlex.join(argv),
        workers="given endpoints" if chosen.endpoint else here,
        engine="as they run" if chosen.endpoint else kind,
        metric=chosen.metric,
        slo=shown(course.slo),
        cells=cells,
        ratios=outcome.all_ratios(cells),
        sentences=outcome.sentences(cells, chosen.metric),
        failed=outcome.failure(cells),
        partial=outcome.partial(len(cells), planned),
    )


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _complain(status: int, sentence: str) -> int:
    print(f"baton bench crossover: {sentence}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton bench crossover",
        description="Single, replicated, disaggregated: the same workers, which pays when?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--engine", choices=("sim", "vllm"), default="sim", help="of the fleets started here (sim)")
    add("--workers", type=count, default=2, help="of each fleet but the single one (2)")
    add("--prefill", type=count, help="of them prefill, where disaggregated (half)")
    add("--endpoint", action="append", default=[], metavar="NAME=URL", help="fleets that run")
    add("--model", default="", help="default: the only one that is served")
    add("--concurrency", type=counts, default=[1, 2, 4, 8, 16, 32], help="(1,2,4,8,16,32)")
    add("--prompt", type=counts, default=[1_000], help="prompt tokens, one or more (1000)")
    add("--output", type=counts, default=[64], help="output tokens, one or more (64)")
    add("--repeats", type=count, default=3, help="of everything, interleaved (3)")
    add("--requests", type=count, default=8, help="of one run at the least (8)")
    add("--metric", choices=tuple(METRICS), default="tokens", help="what decides (tokens)")
    add("--slo", default="", help="ttft=MS,itl=MS, for goodput")
    add("--timeout", type=positive, default=600.0, help="seconds a request may take (600)")
    add("--seed", type=int, default=1)
    add("--json", type=Path, metavar="FILE", help="every figure, for programs")
    add("--png", type=Path, metavar="FILE", help="a picture")
    return parser

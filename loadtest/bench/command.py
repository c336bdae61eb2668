"""`baton bench`: one load, from the command line to what is written."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from pathlib import Path

import msgspec
import uvloop

from common.errors import ConfigError
from loadtest import local_fleet, provenance
from loadtest.bench import endpoint, options, table
from loadtest.bench.driver import LoadPlan, LoadRun
from loadtest.bench.figures import Spread
from loadtest.bench.phases import phases, router_of
from loadtest.bench.progress import show as show_progress
from loadtest.bench.prompts import Maker
from loadtest.bench.request_specs import RequestSpec
from loadtest.bench.result import Result, Workload, result
from loadtest.capacity.report import Slo
from loadtest.show import page, plots
from loadtest.slo import parse as parse_slo
from loadtest.traces.rows import Reading

OK, FAILED, USAGE, DEAD = 0, 1, 2, 3


def main(argv: list[str]) -> int:
    chosen = options.parser().parse_args(argv)
    chosen.command = "baton bench " + shlex.join(_without_key(argv, chosen.api_key))
    chosen.url = chosen.url.rstrip("/").removesuffix("/v1")
    try:
        slo = parse_slo(chosen.slo)
        with ExitStack() as stack:
            if chosen.start:
                running = stack.enter_context(_started(chosen))
                chosen.url, chosen.run_dir = running.url, running.run_dir
            outcome = uvloop.run(_load(chosen, slo))
    except ConfigError as error:
        return _complain(USAGE, error.message)
    except (endpoint.DeadEndpointError, local_fleet.FleetDownError) as error:
        return _complain(DEAD, str(error))
    print("\n".join(table.lines(outcome)))
    write(chosen.json, chosen.html, chosen.png, outcome)
    return FAILED if outcome.partial or outcome.all.failed else OK


def write(to_json: Path | None, to_html: Path | None, to_png: Path | None, result: Result) -> None:
    if to_json:
        to_json.write_bytes(msgspec.json.encode(result))
    if to_png:
        to_png.write_bytes(plots.load(result))
    if to_html:
        to_html.write_text(page.load(result), encoding="utf-8")


async def _load(chosen: argparse.Namespace, slo: Slo) -> Result:
    served = await endpoint.discover(chosen.url, chosen.model, chosen.api_key)
    origin = await asyncio.to_thread(provenance.collect)
    maker = Maker(
        model=served.model,
        api=chosen.api,
        ignore_eos=not chosen.plain,
        measure=await endpoint.measure(chosen.url, served.model, chosen.api, chosen.api_key),
    )
    reading = Reading(str(chosen.trace))
    fitting = Fitting(options.source(chosen, reading), served.max_model_len)
    load_run = LoadRun(_plan(chosen, maker), begun(iter(fitting)))
    await watched(load_run, quiet=chosen.quiet)
    known: dict[str, Spread] = {}
    if chosen.run_dir is not None:
        known = await phases(router_of(chosen.run_dir), load_run.samples)
    work = _workload(chosen, served.model, slo, reading, fitting.skipped)
    return result(load_run, work, origin, known)


class Fitting:
    """The requests that fit into the model; the others are counted in `skipped`."""

    def __init__(self, specs: Iterator[RequestSpec], max_model_len: int) -> None:
        self.skipped = 0
        self._specs = specs
        self._most = max_model_len

    def __iter__(self) -> Iterator[RequestSpec]:
        for spec in self._specs:
            if self._most and spec.prompt + spec.output > self._most:
                self.skipped += 1
            else:
                yield spec


def begun(stream: Iterator[RequestSpec]) -> Iterator[RequestSpec]:
    """The same stream with its first request made, so that a bad trace fails before the load."""
    first = next(stream, None)
    return chain(() if first is None else (first,), stream)


async def watched(load_run: LoadRun, *, quiet: bool) -> None:
    """Runs the load with progress lines. Ctrl-C stops it and keeps the results; a second one
    ends the process."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        load_run.stop("stopped by Ctrl-C")

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        async with asyncio.TaskGroup() as group:
            shown = None if quiet else group.create_task(show_progress(load_run), name="progress")
            await load_run.run()
            if shown is not None:
                shown.cancel()
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _started(chosen: argparse.Namespace) -> AbstractContextManager[local_fleet.LocalFleet]:
    flags = ["--engine", chosen.start, "--prefill", str(chosen.prefill)]
    flags += ["--decode", str(chosen.decode)]
    return local_fleet.fleet(flags, local_fleet.SIM if chosen.start == "sim" else None)


def _plan(chosen: argparse.Namespace, maker: Maker) -> LoadPlan:
    return LoadPlan(
        url=chosen.url,
        maker=maker,
        concurrency=chosen.concurrency or 0,
        seconds=options.seconds(chosen),
        timeout=chosen.timeout,
        api_key=chosen.api_key,
        obey=chosen.obey,
    )


def _workload(
    chosen: argparse.Namespace, model: str, slo: Slo, reading: Reading, skipped: int
) -> Workload:
    return Workload(
        command=chosen.command,
        source=options.source_named(chosen),
        arrivals=options.arrivals_named(chosen),
        url=chosen.url,
        model=model,
        api=chosen.api,
        seed=chosen.seed,
        slo=slo,
        rows=reading.rows,
        bad_rows=reading.bad,
        bad_named=reading.named,
        skipped=skipped,
    )


def _without_key(argv: list[str], key: str) -> list[str]:
    """Results are passed around; keys are not."""
    return [part.replace(key, "KEY") for part in argv] if key else argv


def _complain(status: int, sentence: str) -> int:
    print(f"baton bench: {sentence}", file=sys.stderr)
    return status

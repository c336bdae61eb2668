"""The command line of `baton bench`, and the requests that it means."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from loadtest.bench import arrivals, request_specs
from loadtest.bench.request_specs import RequestSpec
from loadtest.flags import count, positive
from loadtest.traces.reader import read
from loadtest.traces.rows import Reading

EPILOG = """\
examples:
  baton bench --start sim                                   a simulated fleet, chats, 30 s
  baton bench --url http://host:8000 --mix rag --rate 5     RAG against a fleet or any OpenAI server
  baton bench --trace conversation.jsonl --speed 0.1        a recorded trace, ten times slower
  baton bench --concurrency 16 --prompt 1500 --output 200   closed loop, all requests alike
  baton bench crossover --help    does disaggregation pay? single, replicated, disaggregated
  baton bench peers --help        several endpoints side by side under one load
  baton bench show a.json b.json  earlier results side by side, also vllm bench serve's and AIPerf's

Ctrl-C ends a load and keeps what was measured; twice leaves at once.
exit status: 0 all well, 1 requests failed or the load was stopped, 2 wrong command line or trace,
3 nobody answers at the endpoint
"""
ARRIVALS = ("poisson", "constant", "burst")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton bench",
        description="Load against any OpenAI endpoint, and what its clients saw.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    _add_load(parser)
    out = parser.add_argument_group("what is kept")
    out.add_argument("--slo", default="", help="what a good answer is: ttft=MS,itl=MS")
    out.add_argument("--json", type=Path, metavar="FILE", help="the whole result, for programs")
    out.add_argument("--html", type=Path, metavar="FILE", help="a page with plots")
    out.add_argument("--png", type=Path, metavar="FILE", help="the plots alone")
    out.add_argument("--quiet", action="store_true", help="no progress lines")
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    """Where the load goes."""
    to = parser.add_argument_group("where to")
    to.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    to.add_argument("--start", choices=("sim", "vllm"), help="start a fleet for it, stop it after")
    to.add_argument("--prefill", type=int, default=1, help="with --start: prefill workers (1)")
    to.add_argument("--decode", type=int, default=1, help="with --start: decode workers (1)")
    to.add_argument("--model", default="", help="default: the only one that is served")
    to.add_argument("--api", choices=("completions", "chat"), default="completions")
    to.add_argument("--api-key", default="", metavar="KEY")
    to.add_argument("--run-dir", type=Path, help="of a fleet on this host: adds its phases")
    to.add_argument("--timeout", type=positive, default=600.0, help="seconds a request may take")
    to.add_argument(
        "--plain", action="store_true", help="send no ignore_eos, which not every server knows"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is asked")
    what.add_argument("--trace", type=Path, metavar="FILE", help="Mooncake JSONL or Azure CSV")
    what.add_argument("--mix", choices=request_specs.NAMES[:-1], default="chat", help="(chat)")
    what.add_argument("--prompt", type=count, help="prompt tokens of every request, not a mix")
    what.add_argument(
        "--output", type=count, default=100, help="with --prompt: output tokens (100)"
    )
    what.add_argument("--scale", type=positive, default=1.0, help="times all lengths (1)")
    what.add_argument("--seed", type=int, default=1)
    when = parser.add_argument_group("when")
    when.add_argument("--rate", type=positive, default=2.0, help="requests/s, open loop (2)")
    when.add_argument("--arrivals", choices=ARRIVALS, default="poisson", help="(poisson)")
    when.add_argument("--burst", type=count, default=8, help="with --arrivals burst: at once (8)")
    when.add_argument("--concurrency", type=count, help="closed loop: so many at once")
    when.add_argument("--speed", type=positive, default=1.0, help="trace: times as fast (1)")
    when.add_argument(
        "--obey", type=float, default=0.0, help="share that asks again after Retry-After (0)"
    )
    when.add_argument("--seconds", type=positive, help="send for so long (30; a trace: all of it)")
    when.add_argument("--requests", type=count, help="send so many at most")


def source(options: argparse.Namespace, reading: Reading) -> Iterator[RequestSpec]:
    """What to send, in order, with `at` where the loop is open."""
    stream = _timed(options, _specs(options, reading))
    if options.requests:
        stream = islice(stream, options.requests)
    return stream


def seconds(options: argparse.Namespace) -> float:
    """How long to send; 0 = to the end of what there is."""
    if options.seconds:
        return float(options.seconds)
    return 0.0 if options.trace or options.requests else 30.0


def _specs(options: argparse.Namespace, reading: Reading) -> Iterator[RequestSpec]:
    if options.trace:
        rows = read(options.trace, reading, options.requests or 0)
        return request_specs.from_rows(rows, speed=options.speed, scale=options.scale)
    if options.prompt:
        return request_specs.fixed(options.prompt, options.output, options.seed)
    return request_specs.synthetic(options.mix, options.seed, options.scale)


def _timed(options: argparse.Namespace, stream: Iterator[RequestSpec]) -> Iterator[RequestSpec]:
    if options.concurrency:
        return stream
    if not options.trace:
        stream = arrivals.timed(stream, _instants(options))
    return arrivals.until(stream, seconds(options)) if seconds(options) else stream


def _instants(options: argparse.Namespace) -> Iterator[float]:
    if options.arrivals == "constant":
        return arrivals.constant(options.rate)
    if options.arrivals == "burst":
        return arrivals.burst(options.rate, options.burst)
    return arrivals.poisson(options.rate, options.seed)


def source_named(options: argparse.Namespace) -> str:
    scaled = f", lengths x {options.scale:g}" if options.scale != 1 else ""
    if options.trace:
        return f"trace {options.trace.name}{scaled}"
    if options.prompt:
        return f"{options.prompt} tokens in, {options.output} out"
    return f"mix {options.mix}{scaled}"


def arrivals_named(options: argparse.Namespace) -> str:
    if options.concurrency:
        return f"closed loop of {options.concurrency}"
    if options.trace:
        return f"as recorded, {options.speed:g} times as fast"
    size = f" of {options.burst}" if options.arrivals == "burst" else ""
    return f"{options.arrivals}{size}, {options.rate:g} requests/s"

"""`baton bench peers`, from the command line to the table."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import uvloop

from common.errors import ConfigError
from loadtest import provenance
from loadtest.bench import endpoint, request_specs
from loadtest.flags import count, positive
from loadtest.peers.measure import ComparedEndpoint, PeersPlan, Round, run
from loadtest.slo import parse as parse_slo

OK, FAULTLESS, USAGE, DEAD = 0, 1, 2, 3
EPILOG = """\
example:
  baton bench peers --endpoint baton=http://127.0.0.1:8000 --pid baton=4711 \\
      --endpoint vllm=http://127.0.0.1:9000 --pid vllm=4712 --rate 4 --seconds 60 \\
      --fault 'baton=kill -9 4720' --fault 'vllm=kill -9 4730'

A fault is a shell command, run half way through each round of its endpoint; it must undo itself or
be survived, for the next round comes. Find the process anew where it has another pid then, as in
'baton=kill -9 $(systemctl show -P MainPID baton-decode@d0)'. A command that fails is reported, and
the exit status is 1.
"""
HEAD = (
    f"{'peer':<16}{'ok':>8}{'failed':>8}{'usage':>7}{'no wait':>9}{'TTFT p50':>10}{'p90':>9}"
    f"{'TPOT p50':>10}{'good/s':>9}{'us/token':>10}{'recovery s':>12}"
)


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    provenance: provenance.Provenance
    rounds: list[Round]


def main(argv: list[str]) -> int:
    chosen = _parser().parse_args(argv)
    try:
        course = _course(chosen)
        rounds = uvloop.run(_run(chosen, course))
    except ConfigError as error:
        return _complain(USAGE, error.message)
    except endpoint.DeadEndpointError as error:
        return _complain(DEAD, str(error))
    result = Peers(provenance=provenance.collect(), rounds=rounds)
    print("\n".join(lines(rounds)))
    print(f"machine  {provenance.sentence(result.provenance)}")
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.encode(result))
    return FAULTLESS if any(round_.fault_failed for round_ in rounds) else OK


def lines(rounds: Sequence[Round]) -> Iterator[str]:
    """The table. Values are means over the rounds, counts are sums. The column `usage` counts
    answers with wrong or no usage, `no wait` refusals without Retry-After."""
    yield HEAD
    for name in dict.fromkeys(round_.peer for round_ in rounds):
        mine = [round_ for round_ in rounds if round_.peer == name]
        of = [round_.figures for round_ in mine]
        yield (
            f"{name:<16}{sum(f.ok for f in of):>8}{sum(f.failed for f in of):>8}"
            f"{sum(f.usage_wrong + f.prompt_wrong for f in of):>7}"
            f"{sum(f.refused_without_wait for f in of):>9}"
            f"{fmean(f.ttft_ms.p50 for f in of):>10.0f}{fmean(f.ttft_ms.p90 for f in of):>9.0f}"
            f"{fmean(f.tpot_ms.p50 for f in of):>10.1f}{fmean(f.goodput_rps for f in of):>9.2f}"
            f"{_mean([round_.cpu_us_per_token for round_ in mine]):>10}"
            f"{_mean([round_.recovery_s for round_ in mine]):>12}"
        )
        for error in dict.fromkeys(error for f in of for error in f.errors):
            yield f"  {sum(f.errors.get(error, 0) for f in of)} x {error}"
        failed = Counter(round_.fault_failed for round_ in mine if round_.fault_failed)
        for sentence, times in failed.items():
            yield f"  {times} x {sentence}"


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3g}" if known else "-"


async def _run(chosen: argparse.Namespace, course: PeersPlan) -> list[Round]:
    urls, faults = _named(chosen.endpoint, "--endpoint"), _named(chosen.fault, "--fault")
    pids = {name: _pid(text) for name, text in _named(chosen.pid, "--pid").items()}
    if len(urls) < 2:
        raise ConfigError("--endpoint", "two are the least that can be compared")
    strange = (faults.keys() | pids.keys()) - urls.keys()
    if strange:
        raise ConfigError("--fault/--pid", f"no --endpoint is named {', '.join(sorted(strange))}")
    peers = []
    for name, given in urls.items():
        url = given.rstrip("/").removesuffix("/v1")
        served = await endpoint.discover(url, "", "")
        peers.append(
            ComparedEndpoint(name, url, served.model, pids.get(name, 0), faults.get(name, ""))
        )
    return await run(peers, course, lambda line: print(line, file=sys.stderr, flush=True))


def _named(pairs: list[str], flag: str) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not name or not value:
            raise ConfigError(flag, f"{pair!r} is not NAME=VALUE")
        found[name] = value
    return found


def _pid(text: str) -> int:
    if not text.isdigit():
        raise ConfigError("--pid", f"{text!r} is no process id")
    return int(text)


def _course(chosen: argparse.Namespace) -> PeersPlan:
    return PeersPlan(
        mix=chosen.mix,
        scale=chosen.scale,
        rate=chosen.rate,
        seconds=chosen.seconds,
        repeats=chosen.repeats,
        seed=chosen.seed,
        slo=parse_slo(chosen.slo),
        plain=chosen.plain,
    )


def _complain(status: int, sentence: str) -> int:
    print(f"baton bench peers: {sentence}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton bench peers",
        description="Several OpenAI endpoints under the same load and fault, side by side.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--endpoint", action="append", default=[], metavar="NAME=URL", help="two or more")
    add("--pid", action="append", default=[], metavar="NAME=PID", help="whose CPU is charged")
    add("--fault", action="append", default=[], metavar="NAME=COMMAND", help="run half way")
    add("--mix", choices=tuple(request_specs.MIXES), default="chat", help="(chat)")
    add("--scale", type=positive, default=1.0, help="times all lengths (1)")
    add("--rate", type=positive, default=2.0, help="requests/s, open loop, Poisson (2)")
    add("--seconds", type=positive, default=30.0, help="of one round (30)")
    add("--repeats", type=count, default=3, help="rounds of each, interleaved (3)")
    add("--slo", default="", help="what a good answer is: ttft=MS,itl=MS")
    add("--plain", action="store_true", help="send no ignore_eos, which not every server knows")
    add("--seed", type=int, default=1)
    add("--json", type=Path, metavar="FILE", help="every figure, for programs")
    return parser

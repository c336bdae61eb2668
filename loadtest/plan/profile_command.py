"""`baton profile`: measures the workers of a live fleet and writes what `baton plan` needs."""

from __future__ import annotations

import argparse
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import uvloop

from common.config import default_run_dir
from common.net.admin_rows import WorkerRow
from common.net.admin_status import LearnedEstimates, Status
from loadtest import local_fleet, provenance
from loadtest.bench import endpoint
from loadtest.bench.phases import router_of
from loadtest.capacity.profile import Profile, text
from loadtest.flags import count, positive
from loadtest.plan.fit import bandwidth_of, profile_of
from loadtest.plan.probe import ProbeError, Prober, batches_to, lengths_to

OK, FAILED = 0, 1
PROMPT_MAX = 8_192
BATCH_MAX = 32
EPILOG = """\
The fleet should be idle otherwise. For curves of one worker, one prefill and one decode worker are
enough; with several, probes go where the router sends them, and batches are shared out evenly.

examples:
  baton profile --out profile.toml                     of the fleet of `baton up`
  baton profile --start sim --out profile.toml         of a simulated fleet, started for it
"""


def main(argv: list[str]) -> int:
    chosen = _parser().parse_args(argv)
    chosen.url = chosen.url.rstrip("/").removesuffix("/v1")
    environ = local_fleet.SIM if chosen.start == "sim" else None
    try:
        with ExitStack() as stack:
            if chosen.start:
                running = stack.enter_context(
                    local_fleet.fleet(["--engine", chosen.start], environ)
                )
                chosen.url, chosen.run_dir = running.url, running.run_dir
            profile = uvloop.run(_measure(chosen))
    except (endpoint.DeadEndpointError, local_fleet.FleetDownError, ProbeError) as error:
        print(f"baton profile: {error}", file=sys.stderr)
        return FAILED
    chosen.out.write_text(text(profile), encoding="utf-8")
    print("\n".join(lines(profile)))
    print(f"written to {chosen.out}")
    return OK


async def _measure(chosen: argparse.Namespace) -> Profile:
    served = await endpoint.discover(chosen.url, chosen.model, chosen.api_key)
    origin = provenance.collect()
    prober = Prober(
        chosen.url, router_of(chosen.run_dir), served.model, secrets.token_hex(4), chosen.api_key
    )
    known = msgspec.convert(await prober.query("workers"), list[WorkerRow])
    workers = of_model(known, served.model)
    decodes = [row for row in workers if row.role == "decode"]
    if not decodes:
        raise ProbeError(f"the fleet has no decode worker of a model named {served.model}")
    decode = decodes[0]
    room = decode.kv_blocks * decode.block_tokens // 2
    longest = min(chosen.prompt_max, decode.max_model_len - 2, room)
    await prober.warm()
    _print_progress(f"prompts of 64 to {longest} tokens, {chosen.repeats} times each")
    probes = await prober.prompts(lengths_to(longest), chosen.repeats)
    _print_progress(f"a prompt of {longest} tokens again, for the prefix cache")
    prefix_cache = await prober.caches(longest, len(workers))
    _print_progress(f"batches of 1 to {min(chosen.batch_max, decode.requests_max)}")
    batches = batches_to(min(chosen.batch_max, decode.requests_max))
    steps = await prober.steps(batches, len(decodes))
    status = msgspec.convert(await prober.query("status"), Status)
    about = {
        "model": served.model,
        "machine": provenance.sentence(origin),
        "command": "baton profile",
        "workers": f"{len(workers) - len(decodes)} prefill, {len(decodes)} decode",
    }
    seen = list(estimates_of(status, served.model).pair_bytes_per_s.values())
    bandwidth = bandwidth_of(chosen.bandwidth, seen)
    return profile_of(probes, steps, decode, bandwidth, about, prefix_cache=prefix_cache)


def of_model(workers: list[WorkerRow], model: str) -> list[WorkerRow]:
    """Those that serve this model. Where all serve one, it may be an alias of it."""
    here = [row for row in workers if row.state not in ("refused", "gone")]
    one = len({row.model for row in here}) == 1
    return [row for row in here if one or row.model == model]


def estimates_of(status: Status, model: str) -> LearnedEstimates:
    """What the router has learned of this model; of the only one if there is one."""
    learned = {served.model: served.estimates for served in status.models}
    return learned.get(model, status.estimates)


def lines(profile: Profile) -> list[str]:
    """For a person."""
    prefill = ", ".join(f"{n}: {ms:.1f}" for n, ms in profile.prefill_curve)
    decode = ", ".join(f"{n}: {ms:.2f}" for n, ms in profile.decode_curve)
    edges = ", ".join(
        f"{n}: {tenths[0]:.1f} to {tenths[-1]:.1f}" for n, tenths in profile.edge_curve
    )
    tokens = profile.kv_blocks * profile.block_tokens
    bandwidth = profile.about.get("bandwidth", "")
    return [
        f"prefill      ms by tokens   {prefill}",
        f"decode step  ms by batch    {decode}",
        f"prefix cache {'yes' if profile.prefix_cache else 'no: prompts are computed whole'}",
        f"KV           {profile.kv_bytes_per_token} bytes a token, room for {tokens} tokens",
        f"pair         {profile.bandwidth_bytes_per_s / 1e9:.2f} GB/s ({bandwidth})",
        f"handoff      {profile.handoff_ms:.1f} ms after prefill, beside the bytes",
        f"edge         {profile.edge_ms:.1f} ms of HTTP, gateway and client alone",
        f"  tenths       by streams of a worker   {edges}",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton profile",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    add("--run-dir", type=Path, default=default_run_dir(), help="the fleet's (%(default)s)")
    add("--start", choices=("sim", "vllm"), help="start 1 + 1 workers for it, stop them after")
    add("--model", default="", help="default: the only one that is served")
    add("--api-key", default="", metavar="KEY")
    add("--prompt-max", type=count, default=PROMPT_MAX, help="longest prompt (%(default)s)")
    add("--batch-max", type=count, default=BATCH_MAX, help="largest batch (%(default)s)")
    add("--repeats", type=count, default=5, help="of each prompt length (5)")
    add("--bandwidth", type=positive, default=0.0, metavar="BYTES", help="per second of a pair")
    add("--out", type=Path, default=Path("profile.toml"), metavar="FILE", help="(%(default)s)")
    return parser


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

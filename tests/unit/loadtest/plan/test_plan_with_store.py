"""A plan for workers whose stores have a share of each prompt: what loading it takes, and that the
rest alone is computed."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from loadtest.capacity.engine import Job
from loadtest.capacity.profile import Profile, text
from loadtest.capacity.report import Slo
from loadtest.capacity.workload import Arrival
from loadtest.plan.plan_command import main
from loadtest.plan.sizing import FleetShape, TargetLoad, demand, play
from tests.unit.loadtest.capacity.test_engine import PROFILE as STEPS
from tests.unit.loadtest.capacity.test_engine import Bed

PROFILE = Profile(
    prefill_curve=((16, 1.6), (1_000, 100.0), (4_000, 400.0)),
    decode_curve=((1, 10.0), (8, 17.0)),
    kv_bytes_per_token=1_000,
    kv_blocks=4_096,
    control_ms=0.0,
    prefix_cache=False,
)
SLO = Slo(ttft_ms=400.0, tpot_ms=18.0)


def storing(profile: Profile, share: float, bytes_per_s: float = 1e9) -> Profile:
    changes = {"store_hit_share": share, "store_bytes_per_s": bytes_per_s}
    return msgspec.structs.replace(profile, **changes)


def test_what_is_stored_is_loaded_first_and_the_rest_is_computed() -> None:
    """Of 1,001 tokens 31 blocks of 16: 496 come at a megabyte a second in half a second."""
    profile = msgspec.structs.replace(STEPS, kv_bytes_per_token=1_000, prefix_cache=False)
    bed = Bed(storing(profile, 0.5, 1e6))
    bed.prompt("stored", 0, 1_000)
    ((name, at_ms),) = bed.run()
    assert name == "stored"
    assert at_ms == pytest.approx(496 + 50.4)
    assert bed.engine.cached_tokens == 496


def test_others_are_computed_meanwhile_and_what_is_dropped_is_not() -> None:
    profile = msgspec.structs.replace(STEPS, kv_bytes_per_token=1_000, prefix_cache=False)
    bed = Bed(storing(profile, 0.5, 1e6))
    gone = bed.prompt("gone", 0, 1_000)
    bed.prompt("short", 10, 16)
    bed.time.at(0.1, lambda: setattr(gone, "dropped", True))
    assert [name for name, _ in bed.run()] == ["short"]
    assert bed.engine.prompt_tokens == 16


def test_what_the_engine_has_is_not_loaded() -> None:
    profile = msgspec.structs.replace(STEPS, kv_bytes_per_token=1_000)
    bed, blocks = Bed(storing(profile, 0.5, 1e6)), [bytes([at]) for at in range(62)]
    for number in range(2):
        job = Job((str(number), 1), Arrival(0.0, 1_000, 1, 1), 0.0, blocks)
        bed.time.at(float(number), partial(bed.engine.prompt, job))
    (_, first), (_, second) = bed.run()
    assert first == pytest.approx(496 + 50.4)
    assert second == pytest.approx(1_000 + 10.0), "its last eight tokens, without a wait"


def test_never_more_than_whole_blocks_of_it() -> None:
    profile = msgspec.structs.replace(STEPS, kv_bytes_per_token=1_000)
    assert profile.stored_tokens(1_000) == 0
    assert storing(profile, 1.0).stored_tokens(1_025) == 1_024
    assert storing(profile, 1.0).stored_tokens(1_024) == 1_008, "never its last token"
    assert storing(profile, 1.0, 2e6).load_seconds(-5) == 0.0
    assert storing(profile, 1.0, 2e6).load_seconds(1_000) == 0.5


def test_a_fast_store_takes_load_off_and_a_slow_one_costs_first_tokens() -> None:
    load = TargetLoad([Arrival(i / 12, 1_000, 8, 8) for i in range(120)], SLO)
    shape = FleetShape(0, 1)
    without, fast, slow = (
        play(shape, profile, load)
        for profile in (PROFILE, storing(PROFILE, 0.9), storing(PROFILE, 0.9, 1e6))
    )
    assert fast.ttft_ms.p50 < without.ttft_ms.p50 / 3 < slow.ttft_ms.p50
    assert slow.ttft_ms.p50 > 880, "that is what 880 tokens take"
    assert fast.cached_share == pytest.approx(0.896)
    assert without.cached_share == 0.0
    ratio = demand(storing(PROFILE, 0.9), load).prefill / demand(PROFILE, load).prefill
    assert ratio == pytest.approx(0.104, rel=0.02)


def run(folder: Path, *flags: str) -> int:
    path, trace = folder / "p.toml", folder / "t.jsonl"
    path.write_text(text(PROFILE))
    row = {"input_length": 1_024, "output_length": 9, "hash_ids": []}
    trace.write_text("\n".join(json.dumps(row | {"timestamp": 400 * i}) for i in range(10)))
    slo = ("--slo", "ttft=900,itl=40")
    return main(["--profile", str(path), "--trace", str(trace), *slo, *flags])


def test_the_command_takes_share_and_rate_and_says_that_they_are_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path) == 0
    assert "out of stores" not in capsys.readouterr().out
    assert run(tmp_path, "--store-hits", "0.5", "--store-rate", "200") == 0
    out = capsys.readouterr().out
    assert "store    50% of each prompt, out of stores at 200 MiB/s: assumed, not measured" in out
    assert "prefix cache and store: 48 % of prompt tokens in 1 replicated" in out
    assert run(tmp_path, "--store-hits", "1.5") == 2
    assert "--store-hits: a share of each prompt, from 0 to 1" in capsys.readouterr().err

"""A plan against sums done by hand, and what it refuses to answer."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from common.blocks import Kept, KvGroup
from common.errors import ConfigError
from loadtest.capacity.profile import Profile, between, load, text
from loadtest.capacity.report import ClientSample, Slo, quantiles
from loadtest.capacity.workload import Arrival, poisson
from loadtest.capacity.workload import RequestShape as Lengths
from loadtest.plan import formula, search
from loadtest.plan.fit import Step, TimedProbe, bandwidth_of, edges, profile_of, rising
from loadtest.plan.kinds import Kind
from loadtest.plan.plan_command import main
from loadtest.plan.sizing import (
    FleetShape,
    TargetLoad,
    add_edges,
    demand,
    play,
    scaled,
    splits,
    within_data,
)
from tests.unit.common.net.rows import WORKER

PROFILE = Profile(
    prefill_curve=((100, 10.0), (1_000, 100.0), (4_000, 700.0)),
    decode_curve=((1, 10.0), (8, 17.0)),
    bandwidth_bytes_per_s=1e9,
    kv_bytes_per_token=1_000,
    kv_blocks=4_096,
    max_num_seqs=64,
    control_ms=0.0,
    edge_ms=5.0,
)
DECODE_ROW = replace(
    WORKER,
    kv_block_bytes=16_000,
    block_tokens=16,
    kv_blocks=4_096,
    requests_max=64,
    max_model_len=8_192,
)


WINDOWED = (KvGroup(16), KvGroup(16, Kept.WINDOW, 128, in_flight=2_048))


def steady(rate: float, prompt: int, output: int, count: int = 60) -> TargetLoad:
    arrivals = [Arrival(i / rate, prompt, output, output) for i in range(count)]
    return TargetLoad(arrivals, Slo(ttft_ms=400.0, tpot_ms=18.0))


def quiet(_: str) -> None:
    pass


def test_a_curve_is_straight_between_its_points_and_goes_on_after_them() -> None:
    curve = ((10, 1.0), (20, 3.0), (40, 5.0))
    assert [between(curve, at) for at in (1, 10, 15, 30, 40, 60)] == [1.0, 1.0, 2.0, 4.0, 5.0, 7.0]


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    about = {"machine": 'a "quoted" one'}
    profile = msgspec.structs.replace(PROFILE, about=about, kv_groups=WINDOWED)
    path.write_text(text(profile))
    assert load(path) == profile
    path.write_text("decode_curve = [[4, 1.0], [2, 3.0]]")
    with pytest.raises(ConfigError, match="must ascend"):
        load(path)


def test_probes_become_a_profile() -> None:
    probes = [
        TimedProbe(100, 20.0, 24.0, 34.0, 40.9),
        TimedProbe(100, 22.0, 26.0, 36.0, 42.9),
        TimedProbe(100, 90.0, 94.0, 104.0, 110.9),
        TimedProbe(400, None, None, 80.0, 86.9),
    ]
    about = {"machine": "this one"}
    steps = [Step(4, 16.0), Step(1, 10.0)]
    made = profile_of(probes, steps, DECODE_ROW, bandwidth_of(0, [2e9]), about, prefix_cache=False)
    assert made.prefill_curve == ((100, 22.0), (400, 80.0))
    assert made.decode_curve == ((1, 10.0), (4, 16.0))
    assert [made.handoff_ms, made.join_ms, made.edge_ms] == pytest.approx([4, 10, 6])
    assert (made.kv_bytes_per_token, made.bandwidth_bytes_per_s) == (1_000, 2e9)
    assert made.about["bandwidth"] == "seen; handoffs showed 2 GB/s or more"
    assert made.measured
    assert not made.prefix_cache


def test_a_plan_counts_what_the_kv_cache_groups_keep() -> None:
    """Long requests of a window fit many at a time into a KV cache that holds few whole ones."""
    row = replace(DECODE_ROW, kv_groups=WINDOWED)
    probes, steps = [TimedProbe(100, 20.0, 24.0, 34.0, 40.9)], [Step(1, 10.0), Step(4, 16.0)]
    made = profile_of(probes, steps, row, bandwidth_of(0, [2e9]), {}, prefix_cache=False)
    assert made.kv_groups == WINDOWED
    few = msgspec.structs.replace(PROFILE, kv_blocks=700)
    window = msgspec.structs.replace(few, kv_groups=WINDOWED[1:])
    both = msgspec.structs.replace(few, kv_groups=WINDOWED)
    needs = [demand(profile, steady(5, 2_000, 100)) for profile in (few, window, both)]
    whole, least, most = (need.decode for need in needs)
    assert least < whole < most
    assert len({need.prefill for need in needs}) == 1


def test_the_way_has_a_spread_by_streams() -> None:
    """A model's own three messages of 0.3 ms are not counted twice."""
    alone = [TimedProbe(10, None, None, 5.0, 5.9 + ms) for ms in (3, 1, 2)]
    among = [TimedProbe(10, None, None, 5.0, 5.9 + ms) for ms in range(20)]
    few = Step(2, 10.0, among[:4])
    (one, least), (eight, tenths) = edges(alone, [few, Step(8, 10.0, among)])
    assert (one, eight) == (1, 8)
    assert (least[0], least[-1]) == pytest.approx((1, 3))
    assert tenths == pytest.approx([0.5 + 2 * i for i in range(10)])


def test_every_request_takes_its_share_of_the_way() -> None:
    """At nine streams what five and more showed; the pace stays."""
    tenths = tuple(float(10 * i) for i in range(10))
    profile = msgspec.structs.replace(PROFILE, edge_curve=((1, (0.0,) * 10), (5, tenths)))
    ask = Arrival(0.0, 1, 2, 2)
    samples = [ClientSample(ask, 0.0, first=1.0, done=2.0, beside=9) for _ in range(100)]
    add_edges(samples, profile)
    first = quantiles((s.first or 0.0) * 1000 for s in samples)
    assert (first.p50, first.p90, first.p99) == pytest.approx((1_040, 1_080, 1_090))
    assert all(s.done == pytest.approx((s.first or 0.0) + 1.0) for s in samples)
    assert profile.edge_seconds(3, 0.99) == pytest.approx(0.045)
    assert PROFILE.edge_seconds(9, 0.99) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("given", "seen", "speed", "told"),
    [
        (0.0, [], 1e9, "assumed; no handoff"),
        (0.0, [1e6], 1e9, "assumed; handoffs showed 0.001"),
        (5e9, [1e6], 5e9, "given; "),
    ],
)
def test_a_wire_that_was_never_the_limit_is_not_called_measured(
    given: float, seen: list[float], speed: float, told: str
) -> None:
    found = bandwidth_of(given, seen)
    assert found.bytes_per_s == speed
    assert found.explanation.startswith(told)


def test_a_curve_that_falls_is_noise() -> None:
    assert rising(((1, 10.0), (2, 8.0), (4, 9.0), (8, 20.0))) == (
        (1, 9.0), (2, 9.0), (4, 9.0), (8, 20.0),
    )  # fmt: skip


def test_one_request_alone_takes_what_was_measured() -> None:
    """Prefill 100 ms, its KV's last chunk 1 ms, one step of 10 ms, and the edge."""
    alone = TargetLoad([Arrival(0.0, 1_000, 20, 20)], Slo(ttft_ms=400.0))
    outcome = play(FleetShape(1, 1), PROFILE, alone)
    assert outcome.ttft_ms.p50 == pytest.approx(100 + 1 + 10 + 5, abs=0.5)
    assert outcome.tpot_ms.p50 == pytest.approx(10, abs=0.1)
    assert outcome.attainment == 1.0


def test_no_larger_batch_than_was_measured_is_used() -> None:
    assert within_data(PROFILE).max_num_seqs == 8


def test_fleets_that_are_lost_on_paper_are_not_played() -> None:
    need = demand(within_data(PROFILE), steady(25, 1_000, 8))
    assert need.prefill == pytest.approx(2.5, rel=0.03)
    assert [shape.name for shape in splits(4, need)] == ["3P+1D"]
    assert splits(3, need) == []


def test_the_smallest_fleet_is_found_and_smaller_ones_fail() -> None:
    profile, load_ = within_data(PROFILE), steady(12, 1_000, 60)
    found = search.search([Kind(profile)], load_, 0.95, 12, quiet)
    assert found.split is not None
    assert found.split.attainment >= 0.95
    fewer = found.split.shape.workers - 1
    smaller = [play(s, profile, load_) for s in splits(fewer, demand(profile, load_))]
    assert all(outcome.attainment < 0.95 for outcome in smaller)


def test_long_prompts_beside_a_tight_itl_ask_for_disaggregation() -> None:
    """A chunk of 2,048 tokens takes some 300 ms, and every stream of that worker waits for it."""
    arrivals = list(poisson(4.0, 15.0, Lengths(3_500, 40, spread=0.0), 1))
    load_ = TargetLoad(arrivals, Slo(ttft_ms=3_000.0, tpot_ms=16.0))
    found = search.search([Kind(within_data(PROFILE))], load_, 0.95, 8, quiet)
    taken = search.choose(found)
    assert taken is not None
    assert taken.shape.split
    assert search.reason(found, taken, 0.95).startswith(f"Disaggregate: {taken.shape.name}")


def test_as_many_workers_for_no_gain_stay_replicated() -> None:
    load_ = TargetLoad(steady(2, 100, 10).arrivals, Slo(ttft_ms=5_000.0, tpot_ms=500.0))
    found = search.search([Kind(within_data(PROFILE))], load_, 0.95, 4, quiet)
    taken = search.choose(found)
    assert taken is not None
    assert search.reason(found, taken, 0.95).startswith("Stay with a single worker")


def test_sensitivity_says_what_it_does_not_know() -> None:
    load_ = TargetLoad(steady(2, 3_500, 10, 20).arrivals, Slo(ttft_ms=5_000.0))
    found = search.search([Kind(within_data(PROFILE))], load_, 0.95, 4, quiet)
    taken = search.choose(found)
    assert taken is not None
    told = {
        line.what: line for line in search.sensitivity(found, taken, [Kind(PROFILE)], load_, quiet)
    }
    assert told["prompts x 1.5"] == search.Line("prompts x 1.5", None, None)
    assert told["prompts x 0.5"].replicated is not None
    assert scaled(load_, rate=2).span == pytest.approx(load_.span / 2)


def test_the_formula_has_the_models_numbers(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_size": 4_096, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = formula.of_model(tmp_path)
    assert size.bytes == 131_072
    assert "32 layers x 8 KV heads x 128 a head x 2 bytes" in size.explanation
    told = "\n".join(formula.lines(size, PROFILE, [1_000] * 9))
    assert "131.1 MB" in told
    assert f"{1_000 * 131_072 / (10e9 / 8) * 1_000:,.1f} ms" in told
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        formula.of_model(tmp_path)


def plan(tmp_path: Path, profile: Profile, *more: str, prompt: int = 900) -> int:
    path, trace = tmp_path / "p.toml", tmp_path / "t.jsonl"
    path.write_text(text(profile))
    row = {"timestamp": 0, "input_length": prompt, "output_length": 9}
    rows = [json.dumps(row | {"timestamp": 400 * i}) for i in range(20)]
    trace.write_text("\n".join([*rows, "broken"]))
    return main(["--profile", str(path), "--trace", str(trace), "--slo", "ttft=900,itl=40", *more])


def test_the_command_answers_and_names_bad_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to_json, to_png = tmp_path / "plan.json", tmp_path / "plan.png"
    assert plan(tmp_path, PROFILE, "--json", str(to_json), "--png", str(to_png)) == 0
    assert to_png.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "Stay with a single worker" in out
    assert "t.jsonl:21: " in out
    assert json.loads(to_json.read_bytes())["taken"]["shape"] == [0, 1, "", ""]


def test_it_refuses_beyond_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, PROFILE, prompt=4_001) == 4
    assert "20 of 20 prompts are longer" in capsys.readouterr().err
    assert plan(tmp_path, Profile()) == 4
    assert "was not measured" in capsys.readouterr().err
    assert plan(tmp_path, Profile(), "--assume") == 0
    assert plan(tmp_path, PROFILE, "--slo", "") == 2
    assert plan(tmp_path, PROFILE, "--slo", "ttft=1", "--workers", "2") == 1
    assert "No fleet of up to 2 workers" in capsys.readouterr().out

"""A plan for workers that cache prefixes: fewer of them, and how it is known that they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.errors import ConfigError
from loadtest.bench.request_specs import RequestSpec
from loadtest.bench.sample import Sample
from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile, load, text
from loadtest.capacity.prompt_parts import Part
from loadtest.capacity.report import Slo
from loadtest.capacity.workload import Arrival
from loadtest.plan import search
from loadtest.plan.kinds import Kind, Pair
from loadtest.plan.plan_command import main
from loadtest.plan.probe import Prober
from loadtest.plan.sizing import FleetShape, TargetLoad, demand, known, play, scaled, within_data
from services.router.settings import Settings

PROFILE = Profile(
    prefill_curve=((16, 1.6), (1_000, 100.0), (4_000, 700.0)),
    decode_curve=((1, 10.0), (8, 17.0)),
    bandwidth_bytes_per_s=1e9,
    kv_bytes_per_token=1_000,
    kv_blocks=4_096,
    control_ms=0.0,
)
WHOLE = msgspec.structs.replace(PROFILE, prefix_cache=False)
SLO = Slo(ttft_ms=400.0, tpot_ms=18.0)


def specs(count: int, *, shared: bool, rate: float = 25.0) -> list[Arrival]:
    """Prompts of 1,000 tokens, 900 of them one of three documents, or all of them their own."""
    return [
        Arrival(
            i / rate, 1_000, 8, 8,
            parts=(Part(i % 3 if shared else 500 + i, 900), Part(10_000 + i, 100)),
        )
        for i in range(count)
    ]  # fmt: skip


def quiet(_: str) -> None:
    pass


def test_shared_prefixes_need_fewer_prefill_workers() -> None:
    profile = within_data(PROFILE)

    def prefills(arrivals: list[Arrival], of: Profile = profile) -> int:
        searcher = search.Searcher(Pair(Kind(of), Kind(of)), TargetLoad(arrivals, SLO), 0.95, quiet)
        found = searcher.smallest(12, split=True)
        assert found is not None
        return found.shape.prefills

    unlike = prefills(specs(120, shared=False))
    assert unlike >= 3
    assert prefills(specs(120, shared=True)) < unlike
    assert prefills(specs(120, shared=True), within_data(WHOLE)) == unlike


def test_without_a_cache_a_plan_is_what_it_was() -> None:
    shared = TargetLoad(specs(60, shared=True), SLO)
    bare = TargetLoad([arrival._replace(parts=()) for arrival in shared.arrivals], SLO)
    for shape in (FleetShape(2, 1), FleetShape(0, 3)):
        played = [play(shape, *pair) for pair in ((WHOLE, shared), (WHOLE, bare), (PROFILE, bare))]
        assert played[0] == played[1] == played[2]
        assert play(shape, PROFILE, shared).cached_share > 0.7
    assert demand(WHOLE, shared) == demand(PROFILE, bare)


def test_what_earlier_prompts_had_is_not_asked_for_on_paper() -> None:
    arrivals = [
        Arrival(0.0, 100, 1, 1, parts=(Part(1, 60), Part(2, 40))),
        Arrival(1.0, 100, 1, 1, parts=(Part(1, 60), Part(3, 40))),
        Arrival(2.0, 100, 1, 1, parts=(Part(1, 60), Part(2, 40))),
        Arrival(3.0, 100, 1, 1, parts=(Part(4, 60), Part(2, 40))),
        Arrival(4.0, 100, 1, 1),
        Arrival(5.0, 100, 1, 1),
    ]
    assert list(known(arrivals)) == [0, 60, 99, 0, 0, 0]


@pytest.mark.parametrize("prefills", [1, 2, 3])
def test_paper_asks_for_no_more_than_any_fleet_computes(prefills: int) -> None:
    """One worker that forgets nothing computes hardly more, for whole blocks are what is cached."""
    load_ = TargetLoad(specs(60, shared=True, rate=5.0), SLO)
    settings = Settings(worker_timeout_ms=1e12)
    fleet = Fleet(Scenario(PROFILE, prefills, 2, load_.arrivals, 60.0, settings=settings))
    fleet.run()
    busy = sum(worker.engine.busy for worker in fleet._prefills.values())
    paper = demand(PROFILE, load_).prefill * load_.span
    assert paper <= busy
    if prefills == 1:
        assert busy == pytest.approx(paper, rel=0.05)
    assert demand(WHOLE, load_).prefill * load_.span == pytest.approx(6.0)


def test_a_denser_and_a_longer_load_keep_their_prefixes() -> None:
    load_ = TargetLoad(specs(9, shared=True), SLO)
    longer = scaled(load_, rate=2.0, prompt=1.5)
    assert [arrival.prompt for arrival in longer.arrivals] == [1_500] * 9
    assert longer.span == pytest.approx(load_.span / 2)
    assert list(known(longer.arrivals)) == [0] * 3 + [1_350] * 6
    assert scaled(load_).arrivals == load_.arrivals


def test_a_profile_says_whether_workers_cache(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    for profile in (PROFILE, WHOLE):
        path.write_text(text(msgspec.structs.replace(profile, about={"machine": "this one"})))
        assert load(path).prefix_cache == profile.prefix_cache
        assert load(path).about == {"machine": "this one"}
    old = [line for line in path.read_text().splitlines() if "prefix_cache" not in line]
    path.write_text("\n".join(old))
    assert load(path).prefix_cache
    path.write_text('prefix_cache = "yes"\n')
    with pytest.raises(ConfigError, match=r"\$\.prefix_cache"):
        load(path)


def plan(folder: Path, profile: Profile) -> int:
    path, trace = folder / "p.toml", folder / "t.jsonl"
    path.write_text(text(profile))
    row = {"input_length": 1_024, "output_length": 9, "hash_ids": [0, 1]}
    trace.write_text("\n".join(json.dumps(row | {"timestamp": 400 * i}) for i in range(10)))
    to_json = ("--json", str(folder / "plan.json"))
    slo = ("--slo", "ttft=900,itl=40")
    return main(["--profile", str(path), "--trace", str(trace), *slo, *to_json])


def test_the_command_says_what_the_cache_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of ten equal prompts nine are cached but for a block."""
    assert plan(tmp_path, PROFILE) == 0
    out = capsys.readouterr().out
    assert "prefix cache: 89 % of prompt tokens in 1 replicated\nStay with a single worker" in out
    assert "computed whole" not in out
    taken = json.loads((tmp_path / "plan.json").read_bytes())["taken"]
    assert taken["cached_share"] == pytest.approx(9 * 1_008 / 10_240)
    assert plan(tmp_path, WHOLE) == 0
    out = capsys.readouterr().out
    assert "prompts are computed whole: these workers cache no prefixes" in out
    assert "prefix cache:" not in out


class Answers:
    """A fleet as a prober meets it: for each request (P's name or none, what P and D had)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *told: tuple[str, int | None, int]) -> None:
        self.told = told
        self.specs: list[RequestSpec] = []
        answers = self

        async def send(_: Prober, load: Iterator[RequestSpec], concurrency: int) -> list[Sample]:
            answers.specs += load
            assert concurrency == 1
            return [Sample("probe", 1, 1, 0.0, request_id=str(len(answers.specs) - 1))]

        async def explain(_: Prober, verb: str, **args: Any) -> Any:
            assert verb == "explain"
            prefill, of_prefill, of_decode = answers.told[int(args["id"])]
            attempt: dict[str, Any] = {"state": "ended", "prefill": prefill}
            attempt["cached_tokens"] = {"prefill": of_prefill, "decode": of_decode}
            attempt |= {"attempt": 1, "outcome": "stop", "total_ms": 1.0, "gateway": "g0"}
            attempt |= {"prompt_tokens": 1, "max_tokens": 1}
            return {"attempts": [attempt]}

        monkeypatch.setattr(Prober, "_send", send)
        monkeypatch.setattr(Prober, "query", explain)


PROBER = Prober("http://none", "ipc://none", "m", "run")


async def test_a_prompt_that_was_cached_the_second_time_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Answers(monkeypatch, ("p0", 0, 999), ("p0", 992, 999))
    assert await PROBER.caches(1_000, 2)
    assert [spec.prompt for spec in fleet.specs] == [1_000, 1_000]
    assert fleet.specs[0].pieces == fleet.specs[1].pieces


async def test_what_was_handed_over_is_not_called_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """As simulated engines do: D computes the last token, whatever P did."""
    fleet = Answers(monkeypatch, *[("p0", 0, 999)] * 3)
    assert not await PROBER.caches(1_000, 2)
    assert len(fleet.specs) == 3


async def test_the_first_time_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, ("p0", 64, 999), *[("p0", 0, 999)] * 2)
    assert not await PROBER.caches(1_000, 2)


@pytest.mark.parametrize(
    "told",
    [
        [("p0", 0, 999), ("", None, 992)],
        [("p0", 0, 999), ("p1", 0, 999), ("", None, 0), ("p0", 992, 999)],
        [("p0", None, 999), ("p0", 992, 999)],
    ],
)
async def test_whoever_computes_it_again_may_have_it(
    monkeypatch: pytest.MonkeyPatch, told: list[tuple[str, int | None, int]]
) -> None:
    fleet = Answers(monkeypatch, *told)
    assert await PROBER.caches(1_000, 3)
    assert len(fleet.specs) == len(told)

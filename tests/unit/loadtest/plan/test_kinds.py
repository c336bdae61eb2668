"""A plan over workers of several kinds: prefill on the one, decode on the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from common.blocks import Kept, KvGroup
from common.errors import ConfigError
from loadtest.capacity.profile import Profile, text
from loadtest.capacity.report import Slo
from loadtest.plan import by_model, kinds, search
from loadtest.plan.kinds import Kind, Pair
from loadtest.plan.plan_command import main
from loadtest.plan.sizing import Demand, FleetShape, TargetLoad, demand, is_lost, play
from tests.unit.loadtest.plan.test_plan import PROFILE, quiet, steady

GPU = replace(PROFILE, prefix_cache=False)
CPU = replace(GPU, prefill_curve=tuple((at, 20 * ms) for at, ms in GPU.prefill_curve))
"""It makes steps as fast as the GPU, and computes prompts 20 times slower."""
LOAD = TargetLoad(steady(8, 900, 20, 80).arrivals, Slo(ttft_ms=900.0, tpot_ms=40.0))


def profiles(folder: Path, **by_name: Profile) -> list[Path]:
    paths = [folder / f"{name}.toml" for name in by_name]
    for path, profile in zip(paths, by_name.values(), strict=True):
        path.write_text(text(profile))
    return paths


def test_several_kinds_are_called_as_their_files_and_one_has_no_name(tmp_path: Path) -> None:
    paths = profiles(tmp_path, gpu=GPU, cpu=CPU)
    assert kinds.read(paths, [4.0, 0.5]) == [Kind(GPU, "gpu", 4.0), Kind(CPU, "cpu", 0.5)]
    assert kinds.read(paths[:1], []) == [Kind(GPU)]


def test_blocks_of_another_size_are_counted_in_those_of_the_first_kind(tmp_path: Path) -> None:
    coarse = replace(CPU, block_tokens=128, kv_blocks=100)
    (_, other) = kinds.read(profiles(tmp_path, gpu=GPU, cpu=coarse), [])
    assert (other.profile.block_tokens, other.profile.kv_blocks) == (16, 800)


WINDOW = (KvGroup(128, Kept.WINDOW, 256),)


@pytest.mark.parametrize(
    ("names", "prices", "says"),
    [
        ((), [], "say which workers"),
        (("a", "b"), [1.0], "1 prices for 2 profiles"),
        (("a", "a"), [], "two kinds are called the same: a, a"),
        (("a", "b", "c", "d", "e"), [], "5 kinds of workers; 4 are the most"),
        (("a", "windows"), [], "start both with one block_size"),
    ],
)
def test_kinds_that_cannot_be_planned_with_are_refused_by_name(
    tmp_path: Path, names: Sequence[str], prices: list[float], says: str
) -> None:
    windows = replace(GPU, block_tokens=128, kv_groups=WINDOW)
    profiles(tmp_path, a=GPU, b=GPU, c=GPU, d=GPU, e=GPU, windows=windows)
    with pytest.raises(ConfigError, match=says):
        kinds.read([tmp_path / f"{name}.toml" for name in names], prices)


def test_each_role_has_the_profile_of_its_kind_and_the_wire_is_that_of_the_slower() -> None:
    slow = replace(
        CPU, decode_curve=tuple((at, 3 * ms) for at, ms in GPU.decode_curve), edge_ms=50.0
    )
    alone = TargetLoad(steady(0.1, 900, 20, 4).arrivals, Slo())
    like, unlike = play(FleetShape(1, 1), GPU, alone), play(FleetShape(1, 1), GPU, alone, slow)
    assert unlike.tpot_ms.p50 == pytest.approx(3 * like.tpot_ms.p50)
    assert unlike.ttft_ms.p50 == pytest.approx(like.ttft_ms.p50 + 45.0 + 20.0)
    thin = replace(CPU, bandwidth_bytes_per_s=1e6)
    for ours, theirs in ((GPU, thin), (thin, GPU)):
        first, second = Pair(Kind(ours), Kind(theirs)).profiles
        assert first == replace(ours, bandwidth_bytes_per_s=1e6)
        assert second == theirs


def test_prompts_go_to_the_dear_kind_and_streams_to_the_cheap_one() -> None:
    gpu, cpu = Kind(GPU, "gpu", 4.0), Kind(CPU, "cpu", 1.0)
    found = search.search([gpu, cpu], LOAD, 0.95, 8, quiet)
    taken = search.choose(found)
    assert taken is not None
    shape = taken.shape
    assert (shape.prefill_kind, shape.decode_kind) == ("gpu", "cpu")
    assert taken.price == 4 * shape.prefills + shape.decodes
    assert taken.attainment >= 0.95
    assert all(o.attainment < 0.95 for o in found.played if o.price < taken.price)
    others = [o for o in found.played if o.shape.prefill_kind == o.shape.decode_kind]
    assert {o.shape.decode_kind for o in others} >= {"gpu"}
    assert min(o.price for o in others if o.attainment >= 0.95) > taken.price
    assert shape.name in search.reason(found, taken, 0.95)
    assert "It costs " in search.reason(found, taken, 0.95)
    lines = search.sensitivity(found, taken, [gpu, cpu], LOAD, quiet)
    assert all(line.split is not None and line.replicated is not None for line in lines)


def test_many_cheap_workers_may_take_the_place_of_a_few_dear_ones() -> None:
    """With one kind, a disaggregated fleet of so many more workers would not be looked for."""
    slow = tuple((at, 2.5 * ms) for at, ms in GPU.decode_curve)
    few = replace(CPU, max_num_seqs=2, decode_curve=slow)
    load = TargetLoad(steady(8, 900, 40).arrivals, LOAD.slo)
    found = search.search([Kind(GPU, "gpu", 4.0), Kind(few, "cpu", 0.1)], load, 0.95, 8, quiet)
    assert found.replicated is not None
    assert found.split is not None
    assert found.split.shape.workers > found.replicated.shape.workers + search.BEYOND
    assert search.choose(found) == found.split


def test_a_plan_asks_of_each_role_what_its_kind_can_do() -> None:
    tiny = replace(
        GPU,
        max_num_seqs=1,
        kv_blocks=64,
        decode_curve=tuple((at, 3 * ms) for at, ms in GPU.decode_curve),
    )
    load = TargetLoad(steady(1, 900, 20, 40).arrivals, Slo(ttft_ms=900.0, tpot_ms=20.0))
    pair = [Kind(tiny, "tiny"), Kind(GPU, "gpu")]
    need = demand(tiny, load, GPU)
    assert need == Demand(demand(tiny, load).prefill, demand(GPU, load).decode)
    searcher = search.Searcher(Pair(*pair), load, 0.95, quiet)
    assert searcher._need == need
    found = searcher.best(2, split=True)
    assert found is not None
    assert found.tpot_ms == play(FleetShape(1, 1), tiny, load, GPU).tpot_ms
    assert found.attainment >= 0.95
    (line, *_) = search.sensitivity(search.Search([found], found, None), found, pair, load, quiet)
    assert line.split == found.attainment
    assert play(FleetShape(1, 1), tiny, load).attainment < 0.5


def test_a_load_that_no_replicated_fleet_can_serve_on_paper_is_planned_all_the_same() -> None:
    one = replace(GPU, prefill_curve=((100, 100.0), (1_000, 1_000.0), (4_000, 4_000.0)))
    pair = [Kind(one, "a"), Kind(one, "b", 2.0)]
    load = TargetLoad(steady(1, 900, 60, 30).arrivals, Slo(ttft_ms=9_000.0, tpot_ms=90.0))
    found = search.search(pair, load, 0.5, 2, quiet)
    outcomes = [o for o in found.played if o.shape.split]
    assert outcomes
    alone = search.Search(outcomes, found.split, None)
    (line, *_) = search.sensitivity(alone, outcomes[0], pair, load, quiet)
    assert line.replicated is None
    assert line.split is not None


@pytest.mark.parametrize(
    ("shape", "lost"),
    [
        (FleetShape(2, 1), False),
        (FleetShape(1, 1), True),
        (FleetShape(0, 3), False),
        (FleetShape(0, 2), True),
        (FleetShape(3, 0), True),
    ],
)
def test_what_cannot_do_its_work_is_lost_on_paper(shape: FleetShape, *, lost: bool) -> None:
    assert is_lost(shape, Demand(1.5, 0.9)) is lost


def test_the_command_names_kinds_and_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu, cpu = profiles(tmp_path, gpu=GPU, cpu=CPU)
    flags = ["--profile", str(gpu), "--price", "4", "--profile", str(cpu), "--price", "0.5"]
    load = ["--rate", "2", "--requests", "40", "--scale", "0.3", "--slo", "ttft=4000,itl=400"]
    out = tmp_path / "plan.json"
    assert main([*flags, *load, "--workers", "4", "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "profile  gpu, 4 an hour: " in said
    assert "profile  cpu, 0.5 an hour: " in said
    taken = json.loads(out.read_bytes())["taken"]
    prefills, decodes, first, second = taken["shape"]
    prices = {"gpu": 4.0, "cpu": 0.5, "": 0.0}
    assert taken["price"] == prefills * prices[first] + decodes * prices[second]
    cost = taken["price"] / 3600 / taken["output_tokens_per_s"] * 1e6
    assert f"{cost:.2f} <" in said
    unmeasured = profiles(tmp_path, bare=Profile())[0]
    assert main(["--profile", str(gpu), "--profile", str(unmeasured), *load]) == 4
    assert "the profile of bare was not measured" in capsys.readouterr().err
    assert main(load) == 2


def test_a_models_own_kinds_take_the_place_of_the_shared_ones(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[chat]\nprofile = ["a.toml", "b.toml"]\nprice = [4, 1]\n[code]\nrate = 2\n')
    given = ["--models", str(path), "--profile", "shared.toml", "--rate", "9"]
    models, shared = by_model.read(given)
    own = ["--profile", str(tmp_path / "a.toml"), "--profile", str(tmp_path / "b.toml")]
    assert by_model.joined(shared, models["chat"]) == [
        "--rate",
        "9",
        *own,
        "--price",
        "4",
        "--price",
        "1",
    ]
    assert by_model.joined(shared, models["code"]) == [*shared, "--rate", "2"]

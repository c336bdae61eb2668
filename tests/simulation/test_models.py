"""Two models in one fleet: a request only ever reaches a worker of its model, whatever happens to
the processes, and the load of one model does not move the other's figures."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.overload import PREFILL_BOUND, capacity_rps
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import ClientSample, quantiles
from loadtest.capacity.workload import Arrival, RequestShape, poisson
from services.router.rules import submit
from services.router.settings import Settings
from services.router.tables import SharedTables, Tables
from tests.simulation.mutants import planted
from tests.simulation.world.clock import PromiseBrokenError
from tests.simulation.world.world import World

NAMES = ("model", "other")
SEEDS = range(500, 560)
SECONDS = 60.0
PROFILE = Profile()
CHAT, CODE = "chat", "code"
SHAPES = {CHAT: PREFILL_BOUND, CODE: RequestShape(prompt=1_000, output=100)}


def run_all() -> list[World]:
    worlds = [World(seed, models=NAMES) for seed in SEEDS]
    for world in worlds:
        world.run()
    return worlds


@pytest.mark.timeout(300)
def test_every_promise_holds_for_two_models() -> None:
    finished: Counter[str] = Counter()
    for world in run_all():
        for gateway in world.fleet.gateways():
            for client in gateway.clients.values():
                finished[client.spec.model] += client.end == "finished"
    assert set(finished) == set(NAMES)
    assert min(finished.values()) > 3 * len(SEEDS)


def test_a_request_that_reaches_the_other_model_is_noticed() -> None:
    choose = submit.choose_model

    def of_the_first(shared, gateway, message):  # type: ignore[no-untyped-def]
        _, actions = choose(shared, gateway, message)
        return next(iter(shared.models.values())), actions

    with planted(submit, "choose_model", of_the_first), pytest.raises(PromiseBrokenError):
        run_all()


def arrivals(model: str, times: float) -> list[Arrival]:
    """At `times` what the two workers of the model can do."""
    shape = SHAPES[model]
    rate = times * capacity_rps(PROFILE, 1, 1, shape, Settings().kv_grant_max)
    seed = 1 + list(SHAPES).index(model)
    made = poisson(rate, SECONDS, shape, seed, tenant=f"of {model}")
    return [arrival._replace(model=model) for arrival in made]


def is_apart(quiet: list[ClientSample], flooded: list[ClientSample]) -> bool:
    """Whether these clients notice nothing of the load of the other model."""
    refused = any(sample.refused for sample in flooded)
    return not refused and ttft_ms_p99(flooded) <= 1.1 * ttft_ms_p99(quiet)


@cache
def samples(chat_times: float) -> dict[str, list[ClientSample]]:
    """Both models, each with 1P + 1D; the load of `code` is always the same."""
    load = sorted([*arrivals(CHAT, chat_times), *arrivals(CODE, 0.7)])
    scenario = Scenario(
        profile=PROFILE,
        prefills=1,
        decodes=1,
        arrivals=load,
        seconds=SECONDS,
        models=tuple(SHAPES),
        settings=Settings(models=tuple(SHAPES), ttft_slo_ms=2_000.0),
    )
    fleet = Fleet(scenario)
    fleet.run()
    return {name: [s for s in fleet.samples if s.arrival.model == name] for name in SHAPES}


def ttft_ms_p99(clients: list[ClientSample]) -> float:
    return quantiles([(s.first - s.asked) * 1000 for s in clients if s.first is not None]).p99


def test_one_model_at_four_times_its_load_does_not_move_the_others_ttft() -> None:
    quiet, flooded = samples(0.5), samples(4.0)
    refused = [sum(bool(s.refused) for s in load[CHAT]) for load in (quiet, flooded)]
    assert refused[0] == 0
    assert refused[1] > len(flooded[CHAT]) / 2
    assert len(quiet[CODE]) == len(flooded[CODE]) > 200
    before, after = ttft_ms_p99(quiet[CODE]), ttft_ms_p99(flooded[CODE])
    print(f"TTFT p99 of the other model {after:.1f} ms, {after / before:.3f} of what it was")
    assert is_apart(quiet[CODE], flooded[CODE])


def test_gates_that_two_models_share_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Tables.__init__

    def with_shared_gates(self: Tables, shared: SharedTables, model: str) -> None:
        make(self, shared, model)
        self.admission = next(iter(shared.models.values()), self).admission

    quiet = samples(0.5)
    monkeypatch.setattr(Tables, "__init__", with_shared_gates)
    assert not is_apart(quiet[CODE], samples.__wrapped__(4.0)[CODE])

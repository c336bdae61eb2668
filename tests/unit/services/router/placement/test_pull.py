"""Out of which store a worker gets a prompt's beginning, and only if that is sooner than
computing."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.placement.place import place
from services.router.placement.policies import cost
from services.router.placement.pull import best_pull, pull_sentence
from services.router.placement.types import (
    Placement,
    PlacementContext,
    Rates,
    ResourceRequest,
    StoredPrefix,
)
from tests.unit.services.router.views import view

RATES = Rates(
    prefill_tokens_per_s=1_000.0, local_tokens_per_s=4_000.0, kv_bytes_per_s=1e6, pull_s=0.02
)


def stored(name: str, tokens: int, fingerprint: str = "f") -> StoredPrefix:
    return StoredPrefix(name, f"{name}|1", "1", fingerprint, "h:2", tokens)


def context(*stores: StoredPrefix, prompt: int = 320, **more: Any) -> PlacementContext:
    fields: dict[str, Any] = {"rates": RATES} | more
    return PlacementContext(request=ResourceRequest(prompt, 10), stored=stores, **fields)


def puller(**more: Any) -> Any:
    return view("p1", pull_blocks=50, kv_token_bytes=100.0, **more)


def test_both_terms_are_in_the_choice_and_in_its_sentence() -> None:
    choice = best_pull(context(stored("p0", 160)), puller())
    assert choice is not None
    assert choice[:2] == (stored("p0", 160), 160)
    assert choice[2:] == pytest.approx((0.036, 0.16))
    assert pull_sentence(puller(), choice) == (
        "p1 pulls 160 tokens out of the store of p0: 36.0 ms, computing them 160.0 ms"
    )


@pytest.mark.parametrize(
    ("pull_s", "kv_bytes_per_s", "pulled"),
    [(0.139, 1e6, True), (0.145, 1e6, False), (0.0, 1.1e5, True), (0.0, 0.9e5, False)],
)
def test_the_sooner_of_the_two_is_taken(
    pull_s: float, kv_bytes_per_s: float, *, pulled: bool
) -> None:
    rates = RATES._replace(pull_s=pull_s, kv_bytes_per_s=kv_bytes_per_s)
    about = context(stored("p0", 160), rates=rates)
    placement = place(about, [view("d0")], [puller()], cost)
    assert isinstance(placement, Placement)
    assert (placement.pull is not None) is pulled
    pulls = "p1 pulls 160 tokens out of the store of p0: "
    computes = "p1 computes 160 tokens that the store of p0 has: 160.0 ms, pulling them "
    assert (pulls in placement.sentence, computes in placement.sentence) == (pulled, not pulled)


def test_the_measured_rate_of_the_two_workers_counts() -> None:
    def pair(giver: str, taker: str) -> float:
        assert taker == "p1"
        return {"p0": 1e4, "p2": 1e6}[giver]

    rates = RATES._replace(pair_bytes_per_s=pair)
    choice = best_pull(context(stored("p0", 160), stored("p2", 96), rates=rates), puller())
    assert choice is not None
    assert choice.stored.name == "p2"


def test_what_the_worker_has_and_the_last_token_are_not_pulled() -> None:
    own = {"p1|1": 96}
    choice = best_pull(context(stored("p0", 160), cached=own), puller())
    assert choice is not None
    assert choice.tokens == 64
    assert best_pull(context(stored("p0", 96), cached=own), puller()) is None
    whole = best_pull(context(stored("p0", 320)), puller())
    assert whole is not None
    assert whole.tokens == 304


def test_a_decode_worker_compares_with_its_own_rate() -> None:
    choice = best_pull(context(stored("p0", 160)), puller(), local=True)
    assert choice is not None
    assert choice.compute_s == pytest.approx(0.04)


@pytest.mark.parametrize("why", ["itself", "fingerprint", "pair", "no store"])
def test_some_stores_are_of_no_use(why: str) -> None:
    store = stored("p1" if why == "itself" else "p0", 160, "g" if why == "fingerprint" else "f")
    excluded = frozenset({("p0|1", "p1|1")}) if why == "pair" else frozenset()
    worker = view("p1", kv_token_bytes=100.0) if why == "no store" else puller()
    assert best_pull(context(store, excluded_pairs=excluded), worker) is None


def test_the_cost_of_a_worker_that_may_pull_is_less() -> None:
    """So an idle worker is chosen before a busy one that has the prefix."""
    decode = view("d0", kv_token_bytes=100.0)
    about = context(stored("p0", 160), cached={"p0|1": 160})
    views = [view("p0", queued=200), puller()]
    (busy, _), (idle, _) = cost.prefill_scores(about, views, decode)
    assert busy == pytest.approx(0.2 + 0.16)
    assert idle == pytest.approx(0.32 - (0.16 - 0.036))
    (_, _), (alone, _) = cost.prefill_scores(about._replace(stored=()), views, decode)
    assert alone == pytest.approx(0.32)
    slow = about._replace(rates=RATES._replace(pull_s=9.0))
    assert cost.prefill_scores(slow, views, decode)[1][0] == pytest.approx(0.32)


def on_disk(name: str, tokens: int, below: int, rate: float = 1e6) -> StoredPrefix:
    return stored(name, tokens)._replace(on_disk=below, disk_bytes_per_s=rate)


def test_what_only_a_disk_has_is_read_first_and_the_medium_is_named() -> None:
    choice = best_pull(context(on_disk("p0", 160, 96)), puller())
    assert choice is not None
    assert choice[1:] == pytest.approx((160, 0.036 + 0.0096, 0.16))
    assert pull_sentence(puller(), choice) == (
        "p1 pulls 160 tokens out of the disk of p0: 45.6 ms, computing them 160.0 ms"
    )
    slow = best_pull(context(stored("p0", 64), on_disk("p0", 160, 96, 1e3)), puller())
    assert slow is not None
    assert slow.tokens == 64, "what is in memory is pulled alone"


def test_a_disk_that_was_not_measured_has_the_prior() -> None:
    rates = RATES._replace(disk_bytes_per_s=1e5)
    choice = best_pull(context(on_disk("p0", 160, 160, 0.0), rates=rates), puller())
    assert choice is not None
    assert choice.pull_s == pytest.approx(0.036 + 0.16)


def test_the_own_disk_costs_its_reading_alone_and_only_where_that_is_sooner() -> None:
    own = on_disk("p1", 160, 96)
    choice = best_pull(context(own), puller())
    assert choice is not None
    assert choice[1:] == pytest.approx((160, 0.0096, 0.16))
    assert pull_sentence(puller(), choice) == (
        "p1 has 160 tokens on its own disk: 9.6 ms, computing them 160.0 ms"
    )
    assert best_pull(context(own._replace(disk_bytes_per_s=1e4)), puller()) is None
    assert best_pull(context(stored("p1", 160)), puller()) is None, "memory is its cache"
    capped = best_pull(context(own, cached={"p1|1": 128}), puller())
    assert capped is not None
    assert capped[1:3] == pytest.approx((32, 0.0032))


def test_a_worker_is_chosen_for_its_disk_and_before_that_for_its_memory() -> None:
    workers = [view(name, pull_blocks=50, kv_token_bytes=100.0) for name in ("p0", "p1")]
    placement = place(context(on_disk("p1", 160, 160)), [view("d0")], workers, cost)
    assert isinstance(placement, Placement)
    assert placement.prefill is not None
    assert (placement.prefill.name, placement.pull) == ("p1", None)
    assert "p1 has 160 tokens on its own disk" in placement.sentence
    about = context(on_disk("p1", 160, 160), stored("p0", 160), cached={"p0|1": 160})
    placement = place(about, [view("d0")], workers, cost)
    assert isinstance(placement, Placement)
    assert placement.prefill is not None
    assert placement.prefill.name == "p0"

"""Who gets copies of a stream's blocks, and when a request goes where they are."""

from __future__ import annotations

from typing import Any

import pytest

from services.router.placement import checkpoint
from services.router.placement.types import (
    PlacementContext,
    ResourceRequest,
    StoredPrefix,
    WorkerView,
)

NOBODY: frozenset[tuple[str, str]] = frozenset()


def view(name: str, **more: Any) -> WorkerView:
    fields: dict[str, Any] = {
        "name": name,
        "identity": f"{name}|1",
        "incarnation": "1",
        "fingerprint": "f",
        "kv_address": f"{name}:1",
        "block_tokens": 16,
        "max_model_len": 4096,
        "kv_tokens": 0,
        "kv_tokens_max": 4096,
        "requests": 0,
        "requests_max": 8,
        "pull_blocks": 64,
    }
    return WorkerView(**{**fields, **more})


def choose(
    decode: WorkerView,
    *others: WorkerView,
    request: str = "r",
    before: str = "",
    excluded: frozenset[tuple[str, str]] = NOBODY,
    adapter: str = "",
) -> str:
    made = checkpoint.choose_holder(decode, [decode, *others], request, before, excluded, adapter)
    return made.name if made is not None else ""


@pytest.mark.parametrize(
    ("policy", "session", "resumable", "wanted"),
    [
        ("none", "s", True, False),
        ("sessions", "", True, False),
        ("sessions", "s", True, True),
        ("sessions", "s", False, False),
        ("all", "", True, True),
        ("all", "", False, False),
    ],
)
def test_of_which_streams_there_are_copies(
    policy: str, session: str, resumable: bool, wanted: bool
) -> None:
    request = ResourceRequest(40, 8, session)
    assert checkpoint.wants_copies(policy, request, resumable=resumable) is wanted


def test_the_holder_is_the_other_worker_with_fewest_requests() -> None:
    assert choose(view("d0"), view("d1", requests=2), view("d2", requests=1)) == "d2"
    assert choose(view("d0", requests=0)) == "", "never the worker itself"


def test_streams_are_spread_over_workers_that_are_alike() -> None:
    others = [view(f"d{at}") for at in range(1, 4)]
    chosen = {choose(view("d0"), *others, request=f"r{at}") for at in range(40)}
    assert chosen == {"d1", "d2", "d3"}
    assert len({choose(view("d0"), *others, request="r") for _ in range(5)}) == 1


def test_a_stream_keeps_its_holder_while_it_can() -> None:
    others = view("d1", requests=5), view("d2")
    assert choose(view("d0"), *others, before="d1|1") == "d1"
    assert choose(view("d1"), view("d0"), view("d2"), before="d1|1") in ("d0", "d2")


def test_a_holder_that_has_the_adapter_comes_first_and_one_without_is_better_than_none() -> None:
    able, other = view("d1", requests=5, adapters={"sql@1": 0.2}), view("d2")
    assert choose(view("d0"), able, other, adapter="sql@1") == "d1"
    assert choose(view("d0"), able, other, adapter="sql@1", before="d2|1") == "d1"
    assert choose(view("d0"), able, other) == "d2"
    assert choose(view("d0"), other, adapter="sql@1") == "d2", "others can pull from there"


@pytest.mark.parametrize("more", [{"pull_blocks": 0}, {"fingerprint": "g"}])
def test_who_cannot_hold_is_not_chosen(more: dict[str, Any]) -> None:
    assert choose(view("d0"), view("d1", **more)) == ""
    assert choose(view("d0", **more), view("d1")) == ""


def test_a_pair_with_trouble_is_left_alone() -> None:
    excluded = frozenset({("d0|1", "d1|1")})
    assert choose(view("d0"), view("d1"), view("d2", requests=9), excluded=excluded) == "d2"
    assert choose(view("d1"), view("d0"), excluded=excluded) == "d0", "the other direction is well"


def test_what_the_worker_is_told_of_the_holder() -> None:
    told = checkpoint.holder_of(view("d1"))
    assert (told.name, told.incarnation, told.fingerprint, told.kv_address) == (
        "d1",
        "1",
        "f",
        "d1:1",
    )


def test_a_holder_of_half_of_the_prompt_is_asked_first() -> None:
    assert checkpoint.worth_going_to(view("d1"), 5, 160)
    assert not checkpoint.worth_going_to(view("d1"), 4, 160)


def test_at_the_holder_nothing_is_computed_elsewhere() -> None:
    context = PlacementContext(ResourceRequest(40, 8))
    there = checkpoint.at_holder(context, view("d1"))
    assert there.local
    assert "in the store of d1" in there.request.local_reason
    reason = "it wants prompt_logprobs"
    context = PlacementContext(ResourceRequest(40, 8, local_reason=reason))
    assert checkpoint.at_holder(context, view("d1")).request.local_reason == reason


def test_the_holder_counts_as_having_all_once() -> None:
    known = [StoredPrefix(name, f"{name}|1", "1", "f", f"{name}:1", 32) for name in ("p0", "d1")]
    both = checkpoint.with_copies(known, view("d1"), 160)
    assert [(prefix.name, prefix.tokens) for prefix in both] == [("p0", 32), ("d1", 160)]

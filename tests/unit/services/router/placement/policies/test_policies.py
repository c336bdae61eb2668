"""Each policy as a table of snapshots and the choice expected, and what it says of it."""

from typing import Any, get_args

import msgspec
import pytest

from common.config import RouterConfig
from services.router.placement.place import place
from services.router.placement.policies.registry import POLICIES
from services.router.placement.types import (
    Placement,
    PlacementContext,
    PlacementOptions,
    Rates,
    ResourceRequest,
    WorkerView,
)
from tests.unit.services.router.views import view

ASK = ResourceRequest(prompt_tokens=100, max_tokens=50)
ROOMY = {"kv_tokens_max": 1 << 20, "requests_max": 1000, "max_model_len": 1 << 20}


def choose(
    policy: str,
    decodes: list[WorkerView],
    prefills: list[WorkerView],
    request: ResourceRequest = ASK,
    **context: Any,
) -> Placement:
    choice = place(PlacementContext(request, **context), decodes, prefills, POLICIES[policy])
    assert isinstance(choice, Placement), choice
    return choice


def pair(choice: Placement) -> tuple[str, str]:
    return (choice.prefill.name if choice.prefill else "", choice.decode.name)


def test_configuration_and_registry_name_the_same_policies() -> None:
    fields = {field.name: field.type for field in msgspec.structs.fields(RouterConfig)}
    assert sorted(get_args(fields["policy"])) == sorted(POLICIES)
    assert all(name == policy.NAME and policy.HELP for name, policy in POLICIES.items())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_explains_its_choice_of_both(policy: str) -> None:
    choice = choose(policy, [view("d0"), view("d1")], [view("p0"), view("p1")])
    assert choice.policy == policy
    assert choice.sentence.count(";") >= 1
    assert choice.prefill is not None
    assert choice.prefill.name in choice.sentence
    assert choice.decode.name in choice.sentence
    assert [c.role for c in choice.candidates] == ["prefill"] * 2 + ["decode"] * 2
    best = {
        role: [c for c in choice.candidates if c.role == role] for role in ("prefill", "decode")
    }
    assert all(
        [c.score for c in ranked] == sorted(c.score for c in ranked) for ranked in best.values()
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_workers_go_by_name_whatever_their_order(policy: str) -> None:
    request = ResourceRequest(100, 50)
    there = [view("d1"), view("d0"), view("d2")], [view("p2"), view("p0"), view("p1")]
    assert pair(choose(policy, *there, request)) == ("p0", "d0")


def test_round_robin_takes_who_was_given_nothing_longest() -> None:
    decodes = [
        view("d0", last_placed_serial=7),
        view("d1", last_placed_serial=5),
        view("d2", last_placed_serial=6, requests=0),
    ]
    prefills = [view("p0", last_placed_serial=7), view("p1", last_placed_serial=6, queued=5000)]
    assert pair(choose("round_robin", decodes, prefills)) == ("p1", "d1")
    newcomer = view("d9", requests=7)
    assert choose("round_robin", [*decodes, newcomer], prefills).decode.name == "d9"


PREFIX = {"p1|1": 64, "d1|1": 96}


@pytest.mark.parametrize(
    ("decodes", "prefills", "expected"),
    [
        ([view("d0"), view("d1")], [view("p0"), view("p1")], ("p1", "d1")),
        ([view("d0"), view("d1", requests=2)], [view("p0"), view("p1")], ("p1", "d1")),
        ([view("d0"), view("d1", requests=6)], [view("p0"), view("p1")], ("p1", "d0")),
        ([view("d0"), view("d1")], [view("p0"), view("p1", queued=200)], ("p1", "d1")),
        ([view("d0"), view("d1")], [view("p0"), view("p1", queued=600)], ("p0", "d1")),
        ([view("d0")], [view("p0")], ("p0", "d0")),
    ],
)
def test_prefix_affinity_is_bounded_by_load(
    decodes: list[WorkerView], prefills: list[WorkerView], expected: tuple[str, str]
) -> None:
    choice = choose("prefix_affinity", decodes, prefills, cached=PREFIX)
    assert pair(choice) == expected
    for name, has in (("p1", "p1 has 64 of the 100"), ("d1", "d1 has 96 of the 100")):
        assert (has in choice.sentence) is (name in expected)


def test_prefix_affinity_prefers_the_longer_prefix() -> None:
    cached = {"d0|1": 16, "d1|1": 48, "d2|1": 32}
    decodes = [view(f"d{i}") for i in range(3)]
    assert choose("prefix_affinity", decodes, [view("p0")], cached=cached).decode.name == "d1"


def test_a_session_keeps_its_workers_while_others_come_and_go() -> None:
    decodes = [view(f"d{i}") for i in range(8)]
    asks = [ASK._replace(session=f"s{i}") for i in range(200)]
    homes = [choose("session_affinity", decodes, [], request).decode.name for request in asks]
    assert homes == [choose("session_affinity", decodes[::-1], [], a).decode.name for a in asks]
    assert len(set(homes)) == 8
    fewer = decodes[1:]
    moved = [choose("session_affinity", fewer, [], request).decode.name for request in asks]
    assert all(now == before for now, before in zip(moved, homes, strict=True) if before != "d0")


def test_a_loaded_home_is_left_for_the_next_one_and_taken_again() -> None:
    request = ASK._replace(session="mine")
    decodes = [view(f"d{i}") for i in range(4)]
    home = choose("session_affinity", decodes, [], request).decode.name
    busy = [v._replace(requests=6) if v.name == home else v for v in decodes]
    assert choose("session_affinity", busy, [], request).decode.name != home
    level = [v._replace(requests=6) for v in decodes]
    assert choose("session_affinity", level, [], request).decode.name == home


def test_without_a_session_the_least_loaded_is_taken() -> None:
    choice = choose("session_affinity", [view("d0", kv_tokens=16), view("d1")], [view("p0")])
    assert choice.decode.name == "d1"
    assert "no session was given" in choice.sentence


RATES = Rates(
    prefill_tokens_per_s=1000.0,
    local_tokens_per_s=1000.0,
    kv_bytes_per_s=1e6,
    step_s_per_seq=0.001,
)


@pytest.mark.parametrize(
    ("decodes", "prefills", "cached", "expected"),
    [
        # 100 tokens cached are 100 ms: worth a queue of 90 tokens, not one of 110
        ([view("d0")], [view("p0"), view("p1", queued=60)], {"p1|1": 64}, ("p1", "d0")),
        ([view("d0")], [view("p0"), view("p1", queued=70)], {"p1|1": 64}, ("p0", "d0")),
        # 50 tokens of answer at 1 ms for each request there
        ([view("d0", requests=1), view("d1", requests=2)], [view("p0")], {}, ("p0", "d0")),
        # 64 KV tokens of 1 KB at 1 MB/s are 65 ms, one request beside it 50 ms, two 100 ms
        (
            [view("d0"), view("d1", requests=1, kv_token_bytes=1024.0)],
            [view("p0")],
            {"d1|1": 100},
            ("p0", "d0"),
        ),
        (
            [view("d0", kv_token_bytes=1024.0), view("d1", requests=1, kv_token_bytes=1024.0)],
            [view("p0")],
            {"d1|1": 64},
            ("p0", "d1"),
        ),
        (
            [view("d0", kv_token_bytes=1024.0), view("d1", requests=2, kv_token_bytes=1024.0)],
            [view("p0")],
            {"d1|1": 64},
            ("p0", "d0"),
        ),
        # a prompt that D still computes itself is ahead of this one's tokens
        ([view("d0", queued=200), view("d1", requests=1)], [view("p0")], {}, ("p0", "d1")),
    ],
)
def test_cost_adds_seconds(
    decodes: list[WorkerView],
    prefills: list[WorkerView],
    cached: dict[str, int],
    expected: tuple[str, str],
) -> None:
    assert pair(choose("cost", decodes, prefills, rates=RATES, cached=cached)) == expected


def test_cost_counts_what_the_streams_of_a_mixed_p_lose() -> None:
    """A prefill worker with a queue may still be the better one."""
    decode, busy = view("d0"), view("p0", queued=100)
    idle, streams = (view("m0", mixed=True, decoding=decoding) for decoding in (0, 3))
    assert pair(choose("cost", [decode], [busy, idle], rates=RATES)) == ("m0", "d0")
    assert pair(choose("cost", [decode], [busy, streams], rates=RATES)) == ("p0", "d0")


def test_cost_knows_a_slow_pair() -> None:
    decode = view("d0", kv_token_bytes=1024.0)
    slow = RATES._replace(pair_bytes_per_s=lambda p, _: 1e5 if p == "p0" else 1e6)
    prefills = [view("p0"), view("p1", queued=100)]
    assert pair(choose("cost", [decode], prefills, rates=RATES)) == ("p0", "d0")
    assert pair(choose("cost", [decode], prefills, rates=slow)) == ("p1", "d0")


def test_cost_counts_a_cached_prompt_as_computed_where_nobody_prefills_for_it() -> None:
    decodes = [view("d0"), view("d1", requests=1)]
    choice = choose("cost", decodes, [], rates=RATES, local=True, cached={"d1|1": 96})
    assert choice.decode.name == "d1"
    assert "96 tokens cached" in choice.sentence


@pytest.mark.parametrize("policy", ["prefix_affinity", "cost"])
def test_one_prefix_never_piles_up_on_one_worker(policy: str) -> None:
    """A hundred requests of one system prompt, placed one after the other, none ending."""
    views = {f"d{i}": view(f"d{i}", **ROOMY) for i in range(4)}
    cached = {"d0|1": 96}
    for _ in range(100):
        name = choose(
            policy, list(views.values()), [], cached=cached, options=PlacementOptions("replicated")
        )
        chosen = views[name.decode.name]
        views[chosen.name] = chosen._replace(requests=chosen.requests + 1)
    most = max(view.requests for view in views.values())
    assert views["d0"].requests == most
    assert most <= 25 * 1.25 + 4


def test_cost_lets_the_wire_and_the_computing_overlap() -> None:
    """p0's wire takes as long as the computing; p1's is quick, and p1 has a little more to do."""
    rates = Rates(
        prefill_tokens_per_s=100.0,
        pair_bytes_per_s=lambda prefill, _: 100.0 if prefill == "p0" else 10_000.0,
        measured=True,
    )
    decode = view("d0", kv_token_bytes=1.0, **ROOMY)
    prefills = [view("p0", **ROOMY), view("p1", queued=20, **ROOMY)]
    assert pair(choose("cost", [decode], prefills, rates=rates)) == ("p0", "d0")

"""Local or remote prefill: what forces it, and what `auto` weighs."""

from typing import Any

import pytest

from services.router.placement import governor
from services.router.placement.types import (
    PlacementContext,
    PlacementOptions,
    Rates,
    ResourceRequest,
    WorkerView,
)
from tests.unit.services.router.views import view

RATES = Rates(
    prefill_tokens_per_s=1000.0,
    local_tokens_per_s=1000.0,
    kv_bytes_per_s=1e6,
    handoff_s=0.05,
    step_s=0.01,
    step_s_per_seq=0.0,
    measured=True,
)


@pytest.mark.parametrize(
    ("prompt", "prefills", "eligible", "says"),
    [
        (16, [view("p0")], [], "at most one KV block of 16"),
        (17, [view("p0")], ["p0"], ""),
        (100, [], [], "no prefill worker is ready"),
        (100, [view("p0", fingerprint="g")], [], "has the fingerprint of d0"),
        (100, [view("p0", fingerprint="g"), view("p1")], ["p1"], ""),
        (100, [view("p0", fingerprint="g", kv_meaning="m"), view("p1")], ["p1"], ""),
        (100, [view("p0", max_model_len=100)], [], "more than any ready prefill worker can hold"),
        (100, [view("p0", kv_tokens_max=96)], [], "more than any ready prefill worker can hold"),
        (100, [view("p0", requests=8, kv_tokens=1600)], ["p0"], ""),
    ],
)
def test_the_governor(
    prompt: int, prefills: list[WorkerView], eligible: list[str], says: str
) -> None:
    verdict = governor.decide(PlacementContext(ResourceRequest(prompt, 10)), view("d0"), prefills)
    assert [each.name for each in verdict.eligible] == eligible
    assert says in verdict.sentence
    assert bool(verdict.sentence) is not bool(eligible)


@pytest.mark.parametrize(
    ("ours", "theirs", "paired"), [("m", "m", True), ("m", "n", False), ("", "", False)]
)
def test_workers_of_one_meaning_are_paired_whatever_their_layouts(
    ours: str, theirs: str, paired: bool
) -> None:
    """What its KV means is not known of a worker that says nothing."""
    decode = view("d0", kv_meaning=ours, fingerprint_parts={"block_tokens": "32", "weights": "a"})
    parts = {"block_tokens": "16", "weights": "b"}
    prefill = view("p0", fingerprint="g", kv_meaning=theirs, fingerprint_parts=parts)
    verdict = governor.decide(PlacementContext(ResourceRequest(100, 10)), decode, [prefill])
    assert [each.name for each in verdict.eligible] == (["p0"] if paired else [])
    assert ("p0: block_tokens 32 ≠ 16, weights a ≠ b" in verdict.sentence) is not paired


@pytest.mark.parametrize(
    ("resources", "options", "says"),
    [
        (
            ResourceRequest(100, 10, local_reason="prompt_logprobs"),
            PlacementOptions(),
            "prompt_logprobs",
        ),
        (ResourceRequest(100, 10), PlacementOptions("replicated", "auto"), "mode is replicated"),
        (ResourceRequest(100, 10), PlacementOptions("single", "auto"), "mode is single"),
        (
            ResourceRequest(100, 10),
            PlacementOptions("disaggregated", "never"),
            "remote_prefill is never",
        ),
    ],
)
def test_what_forces_local(
    resources: ResourceRequest, options: PlacementOptions, says: str
) -> None:
    verdict = governor.decide(
        PlacementContext(resources, options=options), view("d0"), [view("p0")]
    )
    assert not verdict.eligible
    assert says in verdict.sentence
    assert not verdict.compared


def compared(
    resources: ResourceRequest, decode: WorkerView, *prefills: WorkerView, **context: Any
) -> governor.PrefillDecision:
    context = {"rates": RATES, "options": PlacementOptions(remote_prefill="auto")} | context
    return governor.decide(
        PlacementContext(resources, **context), decode, prefills or (view("p0"),)
    )


def remote(*args: Any, **context: Any) -> bool:
    verdict = compared(*args, **context)
    assert verdict.compared
    return bool(verdict.eligible)


def test_an_idle_d_computes_itself_and_a_busy_one_does_not() -> None:
    """400 tokens are 400 ms on either; the handoff is 50 ms more; on D, each running stream loses
    400 ms x 400 / (400 + 10)."""
    assert not remote(ResourceRequest(400, 10), view("d0"))
    assert remote(ResourceRequest(400, 10), view("d0", requests=1))
    verdict = compared(ResourceRequest(400, 10), view("d0", requests=2))
    assert verdict.sentence == (
        "remote prefill pays: remote 450 ms, local 400 ms and 780 ms that 2 running streams would "
        "lose"
    )


def test_loading_an_adapter_counts_where_it_is_not_in_memory() -> None:
    """Without it 450 ms with P, and 400 + 390 ms with D, which loads while P computes."""
    resources = ResourceRequest(400, 10, adapter="sql@1")
    there, absent, far = ({"sql@1": seconds} for seconds in (0.0, 0.5, 2.0))
    assert remote(resources, view("d0", requests=1, adapters=there), view("p0", adapters=there))
    assert not remote(
        resources, view("d0", requests=1, adapters=there), view("p0", adapters=absent)
    )
    assert remote(resources, view("d0", requests=1, adapters=absent), view("p0", adapters=absent))
    verdict = compared(resources, view("d0", adapters=far), view("p0", adapters=there))
    assert "remote 2000 ms, local 2400 ms" in verdict.sentence


def test_p_s_queue_turns_the_prompt_to_d() -> None:
    resources, decode = ResourceRequest(400, 10), view("d0", requests=1)
    assert remote(resources, decode, view("p0", queued=300))
    assert not remote(resources, decode, view("p0", queued=400))
    assert remote(resources, decode, view("p0", queued=400), view("p1"))


def test_what_the_streams_of_a_mixed_p_lose_counts() -> None:
    resources, decode = ResourceRequest(400, 10), view("d0", requests=2)
    assert remote(resources, decode, view("m0", mixed=True, decoding=1))
    assert not remote(resources, decode, view("m0", mixed=True, decoding=2))


def test_a_mixed_d_computes_its_prompts_whatever_is_wanted() -> None:
    for options in (PlacementOptions(), PlacementOptions(remote_prefill="auto")):
        context = PlacementContext(ResourceRequest(1_000, 10), options=options, rates=RATES)
        verdict = governor.decide(context, view("d0", mixed=True, requests=7), [view("p0")])
        assert not verdict.eligible
        assert not verdict.compared
        assert "d0 is mixed" in verdict.sentence


def test_either_side_is_as_fast_as_it_was_measured() -> None:
    """On a D of half the speed, of both kinds, the prompt takes 800 ms, of which each of two
    streams loses 800 ms x 800 / (800 + 20). Of P's queue of 300, a P of twice the speed computes
    2,000 tokens a second."""
    slow = view("d0", requests=2, prefill_speed=0.5, step_speed=0.5)
    verdict = compared(ResourceRequest(400, 10), slow, view("p0", prefill_speed=2.0, queued=300))
    assert "remote 400 ms, local 800 ms and 1561 ms that" in verdict.sentence


def test_what_the_streams_of_a_slow_mixed_p_lose_is_by_its_speed() -> None:
    """400 ms of its prompt are 800 ms there; its stream loses 800 ms x 800 / (800 + 10)."""
    mixed = view("m0", mixed=True, decoding=1, prefill_speed=0.5)
    verdict = compared(ResourceRequest(400, 10), view("d0", requests=2), mixed)
    assert "remote 1640 ms, local 400 ms" in verdict.sentence


def test_what_either_side_has_cached_counts() -> None:
    resources = ResourceRequest(400, 10)
    busy = view("d0", requests=1)
    assert remote(resources, busy)
    assert not remote(resources, busy, cached={"d0|1": 300})
    assert remote(resources, view("d0"), cached={"p0|1": 300})


def test_bytes_over_a_slow_pair_count() -> None:
    resources, decode = ResourceRequest(400, 10), view("d0", requests=1, kv_token_bytes=1024.0)
    slow = {("p0", "d0"): 5e5, ("p1", "d0"): 1e6}
    rates = RATES._replace(pair_bytes_per_s=lambda p, d: slow[p, d])
    assert remote(resources, decode), "409 ms of transfer beside 400 ms of computing"
    assert not remote(resources, decode, rates=rates)
    assert remote(resources, decode, view("p0"), view("p1"), rates=rates)


def test_prompts_that_d_still_computes_are_ahead_of_this_one() -> None:
    assert remote(ResourceRequest(400, 10), view("d0", queued=200))


@pytest.mark.parametrize(
    ("queued", "never", "after_remote", "after_local"),
    [(150, True, True, True), (300, True, True, False), (450, False, True, False)],
)
def test_near_the_crossover_it_stays_as_it_was(
    queued: int, never: bool, after_remote: bool, after_local: bool
) -> None:
    """Local costs 790 ms; remote 450 ms and the queue. The band is 20 % to both sides."""
    resources, decode, prefill = (
        ResourceRequest(400, 10),
        view("d0", requests=1),
        view("p0", queued=queued),
    )
    decided = [
        remote(resources, decode, prefill, was_remote=was, rates=RATES)
        for was in (None, True, False)
    ]
    assert decided == [never, after_remote, after_local]


def test_remote_until_something_was_measured() -> None:
    verdict = compared(ResourceRequest(400, 10), view("d0"), rates=RATES._replace(measured=False))
    assert verdict.eligible
    assert not verdict.compared


def test_local_for_long_is_measured_again() -> None:
    verdict = compared(ResourceRequest(400, 10), view("d0"), probe=True)
    assert verdict.eligible
    assert not verdict.compared
    assert "to measure it again: remote 450 ms, local 400 ms" in verdict.sentence


def test_always_does_not_weigh() -> None:
    assert compared(
        ResourceRequest(400, 10), view("d0"), options=PlacementOptions(remote_prefill="always")
    ).eligible


def test_a_barred_pair_is_left_out_and_all_barred_means_local() -> None:
    resources, decode, prefills = ResourceRequest(400, 10), view("d0"), (view("p0"), view("p1"))
    one, both = frozenset({("p0|1", "d0|1")}), frozenset({("p0|1", "d0|1"), ("p1|1", "d0|1")})
    left = governor.decide(PlacementContext(resources, excluded_pairs=one), decode, prefills)
    assert [each.name for each in left.eligible] == ["p1"]
    assert left.sentence == "1 prefill workers are not paired with d0 now"
    verdict = governor.decide(PlacementContext(resources, excluded_pairs=both), decode, prefills)
    assert not verdict.eligible
    assert "paired with no prefill worker now" in verdict.sentence
    assert (
        len(
            governor.decide(
                PlacementContext(resources, excluded_pairs=both), view("d1"), prefills
            ).eligible
        )
        == 2
    )

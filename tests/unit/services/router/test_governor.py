"""Local or remote prefill: what forces it, and what `auto` weighs."""

from typing import Any

import pytest

from services.router import governor
from services.router.placement_types import Ask, Known, Rates, Rules, WorkerView
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
        (100, [view("p0", max_model_len=100)], [], "more than any ready prefill worker can hold"),
        (100, [view("p0", kv_tokens_max=96)], [], "more than any ready prefill worker can hold"),
        (100, [view("p0", requests=8, kv_tokens=1600)], ["p0"], ""),
    ],
)
def test_the_governor(
    prompt: int, prefills: list[WorkerView], eligible: list[str], says: str
) -> None:
    verdict = governor.decide(Ask(prompt, 10), view("d0"), prefills)
    assert [each.name for each in verdict.eligible] == eligible
    assert says in verdict.sentence
    assert bool(verdict.sentence) is not bool(eligible)


@pytest.mark.parametrize(
    ("ask", "rules", "says"),
    [
        (Ask(100, 10, local_reason="prompt_logprobs"), Rules(), "prompt_logprobs"),
        (Ask(100, 10), Rules("replicated", "auto"), "mode is replicated"),
        (Ask(100, 10), Rules("single", "auto"), "mode is single"),
        (Ask(100, 10), Rules("disaggregated", "never"), "remote_prefill is never"),
    ],
)
def test_what_forces_local(ask: Ask, rules: Rules, says: str) -> None:
    verdict = governor.decide(ask, view("d0"), [view("p0")], Known(rules=rules))
    assert not verdict.eligible
    assert says in verdict.sentence
    assert not verdict.weighed


def weighed(ask: Ask, decode: WorkerView, *prefills: WorkerView, **known: Any) -> governor.Verdict:
    known = {"rates": RATES, "rules": Rules(remote_prefill="auto")} | known
    return governor.decide(ask, decode, prefills or (view("p0"),), Known(**known))


def remote(*args: Any, **known: Any) -> bool:
    verdict = weighed(*args, **known)
    assert verdict.weighed
    return bool(verdict.eligible)


def test_an_idle_d_computes_itself_and_a_busy_one_does_not() -> None:
    """400 tokens are 400 ms on either; the handoff is 50 ms more; on D, each running stream loses
    400 ms x 400 / (400 + 10)."""
    assert not remote(Ask(400, 10), view("d0"))
    assert remote(Ask(400, 10), view("d0", requests=1))
    verdict = weighed(Ask(400, 10), view("d0", requests=2))
    assert verdict.sentence == (
        "remote prefill pays: remote 450 ms, local 400 ms and 780 ms that 2 running streams would "
        "lose"
    )


def test_p_s_queue_turns_the_prompt_to_d() -> None:
    ask, decode = Ask(400, 10), view("d0", requests=1)
    assert remote(ask, decode, view("p0", queued=300))
    assert not remote(ask, decode, view("p0", queued=400))
    assert remote(ask, decode, view("p0", queued=400), view("p1"))


def test_what_either_side_has_cached_counts() -> None:
    ask = Ask(400, 10)
    busy = view("d0", requests=1)
    assert remote(ask, busy)
    assert not remote(ask, busy, cached={"d0|1": 300})
    assert remote(ask, view("d0"), cached={"p0|1": 300})


def test_bytes_over_a_slow_pair_count() -> None:
    ask, decode = Ask(400, 10), view("d0", requests=1, kv_token_bytes=1024.0)
    slow = {("p0", "d0"): 5e5, ("p1", "d0"): 1e6}
    rates = RATES._replace(pair_bytes_per_s=lambda p, d: slow[p, d])
    assert remote(ask, decode), "409 ms of transfer beside 400 ms of computing"
    assert not remote(ask, decode, rates=rates)
    assert remote(ask, decode, view("p0"), view("p1"), rates=rates)


def test_prompts_that_d_still_computes_are_ahead_of_this_one() -> None:
    assert remote(Ask(400, 10), view("d0", queued=200))


@pytest.mark.parametrize(
    ("queued", "never", "after_remote", "after_local"),
    [(150, True, True, True), (300, True, True, False), (450, False, True, False)],
)
def test_near_the_crossover_it_stays_as_it_was(
    queued: int, never: bool, after_remote: bool, after_local: bool
) -> None:
    """Local costs 790 ms; remote 450 ms and the queue. The band is 20 % to both sides."""
    ask, decode, prefill = Ask(400, 10), view("d0", requests=1), view("p0", queued=queued)
    decided = [
        remote(ask, decode, prefill, was_remote=was, rates=RATES) for was in (None, True, False)
    ]
    assert decided == [never, after_remote, after_local]


def test_remote_until_something_was_measured() -> None:
    verdict = weighed(Ask(400, 10), view("d0"), rates=RATES._replace(measured=False))
    assert verdict.eligible
    assert not verdict.weighed


def test_local_for_long_is_measured_again() -> None:
    verdict = weighed(Ask(400, 10), view("d0"), probe=True)
    assert verdict.eligible
    assert not verdict.weighed
    assert "to measure it again: remote 450 ms, local 400 ms" in verdict.sentence


def test_always_does_not_weigh() -> None:
    assert weighed(Ask(400, 10), view("d0"), rules=Rules(remote_prefill="always")).eligible


def test_a_barred_pair_is_left_out_and_all_barred_means_local() -> None:
    ask, decode, prefills = Ask(400, 10), view("d0"), (view("p0"), view("p1"))
    one, both = frozenset({("p0|1", "d0|1")}), frozenset({("p0|1", "d0|1"), ("p1|1", "d0|1")})
    left = governor.decide(ask, decode, prefills, Known(barred=one))
    assert [each.name for each in left.eligible] == ["p1"]
    assert left.sentence == "1 prefill workers are not paired with d0 now"
    verdict = governor.decide(ask, decode, prefills, Known(barred=both))
    assert not verdict.eligible
    assert "paired with no prefill worker now" in verdict.sentence
    assert len(governor.decide(ask, view("d1"), prefills, Known(barred=both)).eligible) == 2

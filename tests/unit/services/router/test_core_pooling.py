"""A pooling model in the router: least loaded by tokens, whatever the policy, and nothing
generated."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import Decode, Ended, Failed, Prefill, Refused
from services.router.events import PolicyChosen
from tests.unit.services.router.rig import Rig


def fleet(workers: int = 2, **settings: Any) -> Rig:
    rig = Rig(pooling=frozenset({"model"}), **settings)
    rig.gateway()
    for number in range(workers):
        rig.decode(f"d{number}")
    return rig


def ask(rig: Rig, name: str, prompt: int) -> str:
    """Returns the worker that computes it."""
    rig.submit(name, prompt=prompt, out=0)
    assert rig.take(Prefill) == []
    places = [send.peer for send in rig.sent if isinstance(send.message, Decode)]
    (decode,) = rig.take(Decode)
    assert decode.ticket is None
    return places[0]


@pytest.mark.parametrize("policy", ["cost", "round_robin"])
def test_the_worker_with_the_fewest_tokens_computes_it(policy: str) -> None:
    rig = fleet(policy=policy)
    long = ask(rig, "long", 600)
    other = {ask(rig, f"short{n}", 40) for n in range(4)}
    assert len(other) == 1
    assert long not in other, "four short prompts are fewer tokens than one long one"


def test_an_operators_choice_of_policy_is_for_models_that_generate() -> None:
    rig = fleet()
    rig.handle(PolicyChosen("round_robin", "always"))
    long = ask(rig, "long", 600)
    assert {ask(rig, f"short{n}", 40) for n in range(3)} & {long} == set()


@pytest.mark.parametrize("mode", ["disaggregated", "replicated"])
def test_it_needs_no_prefill_worker_even_if_prefill_is_always_remote(mode: str) -> None:
    """It would get nothing of one that is there all the same."""
    rig = fleet(1, mode=mode)
    rig.prefill()
    assert ask(rig, "r", 40) == "d0|1"
    rig.started("r", kv=None)
    rig.receive("d0|1", Ended(request_id="r", attempt=1, finish_reason="stop"))
    assert rig.nothing_held()


def test_the_request_of_a_lost_worker_is_computed_by_another() -> None:
    rig = fleet()
    first = ask(rig, "r", 40)
    rig.gone(first)
    rig.tick(5.0, alive=("d0|1" if first == "d1|1" else "d1|1", "g0|1"))
    (failed,) = rig.take(Failed)
    assert failed.request_id == "r"
    rig.submit("r", 2, out=0)
    (again,) = rig.take(Decode)
    assert again.attempt == 2


@pytest.mark.parametrize(("pooling", "out"), [(True, 1), (False, 0)])
def test_a_request_of_the_other_kind_is_refused(pooling: bool, out: int) -> None:
    rig = fleet() if pooling else Rig()
    if not pooling:
        rig.gateway()
        rig.decode()
    rig.submit("r", out=out)
    (refused,) = rig.take(Refused)
    assert refused.code == "invalid_request"
    assert ("generates nothing" in refused.message) is pooling

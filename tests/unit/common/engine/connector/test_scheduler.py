"""The scheduler half on made-up scheduler outputs: claims once, follows blocks, lets go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.engine.connector.metadata import Side, from_params, to_params
from common.engine.connector.scheduler import SchedulerHalf
from tests.rigs.messages import ticket

BLOCK = 16
KEY = ("r", 0)


def request(side: Side | None, tokens: int, request_id: str = "r#0") -> Any:
    params = to_params(side, ticket("r")) if side else None
    return SimpleNamespace(
        request_id=request_id, num_prompt_tokens=tokens, kv_transfer_params=params
    )


def blocks(ids: list[int], shared: int = 0) -> Any:
    return SimpleNamespace(
        get_block_ids=lambda: (ids,),
        get_unhashed_block_ids_all_groups=lambda: [ids[shared:]],
    )


def output(
    new: list[tuple[str, list[int], int]] | None = None,
    cached: list[tuple[str, list[int] | None, int]] | None = None,
    tokens: dict[str, int] | None = None,
    preempted: set[str] | None = None,
    resumed: set[str] | None = None,
) -> Any:
    again = cached or []
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=(ids,), num_computed_tokens=computed)
            for name, ids, computed in new or []
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _, _ in again],
            new_block_ids=[None if ids is None else (ids,) for _, ids, _ in again],
            num_computed_tokens=[computed for _, _, computed in again],
            resumed_req_ids=resumed or set(),
        ),
        num_scheduled_tokens=tokens or {},
        total_num_scheduled_tokens=sum((tokens or {}).values()),
        preempted_req_ids=preempted,
    )


def test_the_ticket_survives_the_parameters() -> None:
    task = from_params(to_params("send", ticket("r")))
    assert task is not None
    assert task.ticket == ticket("r")
    assert from_params(None) is None
    assert from_params({"other": 1}) is None


@pytest.mark.parametrize(("tokens", "local", "claim"), [(100, 0, 99), (100, 96, 3), (97, 96, 0)])
def test_d_claims_all_but_the_last_token(tokens: int, local: int, claim: int) -> None:
    half = SchedulerHalf(BLOCK)
    wanted = request("receive", tokens)
    half.new_request(wanted)
    assert half.matched_tokens(wanted, local) == claim
    assert half.matched_tokens(wanted, local) == claim, "asking has no side effects"


def test_d_fetches_only_what_it_lacks_into_its_own_blocks_once() -> None:
    half = SchedulerHalf(BLOCK)
    wanted = request("receive", 100)
    half.new_request(wanted)
    half.allocated(wanted, blocks([9, 8, 7, 6, 5, 4, 3], shared=2), 99 - 32)
    assert half.pending
    (fetch,) = half.step(output()).fetches
    assert (fetch.first_block, fetch.block_ids) == (2, [7, 6, 5, 4, 3])
    half.allocated(wanted, blocks([9, 8, 7, 6, 5, 4, 3]), 0)
    assert half.matched_tokens(wanted, 0) == 0, "a failed load is not claimed again"
    assert half.step(output()).fetches == []


def test_blocks_that_others_share_are_never_written() -> None:
    half = SchedulerHalf(BLOCK)
    wanted = request("receive", 100)
    half.new_request(wanted)
    with pytest.raises(RuntimeError, match="share"):
        half.allocated(wanted, blocks([9, 8, 7, 6, 5, 4, 3], shared=3), 99 - 32)


def test_d_that_lacks_nothing_tells_p_so() -> None:
    half = SchedulerHalf(BLOCK)
    wanted = request("receive", 97)
    half.new_request(wanted)
    half.allocated(wanted, blocks([1, 2, 3, 4, 5, 6, 7]), 0)
    (fetch,) = half.step(output()).fetches
    assert fetch.block_ids == []


def test_p_follows_chunks_and_offers_once() -> None:
    half = SchedulerHalf(BLOCK)
    sent = request("send", 40)
    half.new_request(sent)
    plan = half.step(output(new=[("r#0", [3, 4], 0)], tokens={"r#0": 20}))
    (first,) = plan.progress
    assert (first.block_ids, first.computed, first.prompt_blocks) == ([3, 4], 1, 3)
    assert first.offer == ticket("r")
    assert not plan.idle
    (second,) = half.step(output(cached=[("r#0", [8, 9], 20)], tokens={"r#0": 20})).progress
    assert (second.block_ids, second.computed, second.offer) == ([3, 4, 8], 3, None)


def test_p_preempted_withdraws_and_starts_over() -> None:
    half = SchedulerHalf(BLOCK)
    half.new_request(request("send", 40))
    half.step(output(new=[("r#0", [3, 4], 0)], tokens={"r#0": 20}))
    plan = half.step(output(preempted={"r#0"}))
    assert plan.withdrawn == [KEY]
    assert plan.idle
    again = output(cached=[("r#0", [11, 12, 13], 0)], tokens={"r#0": 40}, resumed={"r#0"})
    (progress,) = half.step(again).progress
    assert (progress.block_ids, progress.computed) == ([11, 12, 13], 3)


@pytest.mark.parametrize("aborted", [False, True])
def test_p_keeps_blocks_only_of_what_it_offered(*, aborted: bool) -> None:
    half = SchedulerHalf(BLOCK)
    sent = request("send", 40)
    half.new_request(sent)
    assert half.finished(sent, aborted=aborted) is False
    half.new_request(sent)
    half.step(output(new=[("r#0", [3, 4, 5], 0)], tokens={"r#0": 40}))
    assert half.finished(sent, aborted=aborted) is True
    assert bool(half.step(output()).releases) == aborted
    assert half.finished(sent, aborted=aborted) is False


def test_an_aborted_load_is_released_and_others_are_left_alone() -> None:
    half = SchedulerHalf(BLOCK)
    wanted = request("receive", 40)
    half.new_request(wanted)
    half.allocated(wanted, blocks([1, 2, 3]), 39)
    half.step(output())
    assert half.finished(wanted, aborted=True) is False
    assert half.step(output()).releases == [(KEY, "aborted in the engine")]
    plain = request(None, 40, "plain")
    half.new_request(plain)
    half.allocated(plain, blocks([1, 2, 3]), 0)
    assert half.matched_tokens(plain, 0) == 0
    assert half.finished(plain, aborted=True) is False
    assert not half.pending

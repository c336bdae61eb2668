"""The scheduler half on made-up scheduler outputs: claims once, follows blocks, lets go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.blocks import Kept, KvGroup
from common.engine.connector.metadata import Side, from_params, to_params
from common.engine.connector.scheduler import SchedulerHalf
from tests.rigs.messages import ticket

FULL = [KvGroup(16)]
MIXED = [KvGroup(16), KvGroup(16, Kept.WINDOW, 20), KvGroup(4096, Kept.STATE)]
KEY = ("r", 0)


def request(
    side: Side | None,
    tokens: int,
    request_id: str = "r#0",
    *,
    made: int = 0,
    computed: int = 0,
    canonical: bool = False,
) -> Any:
    """`made`: tokens of its answer so far."""
    params = to_params(side, ticket("r", canonical=canonical), tokens - 1) if side else None
    return SimpleNamespace(
        request_id=request_id,
        num_prompt_tokens=tokens,
        num_tokens=tokens + made,
        num_output_tokens=made,
        num_computed_tokens=computed,
        kv_transfer_params=params,
        cache_salt=None,
        lora_request=None,
        mm_features=[],
        all_token_ids=list(range(tokens + made)),
    )


def blocks(*groups: list[int], shared: int = 0) -> Any:
    """Zeros are vLLM's null block."""
    return SimpleNamespace(
        get_block_ids=lambda: groups,
        get_unhashed_block_ids_all_groups=lambda: [
            [at for at in ids[shared:] if at] for ids in groups
        ],
    )


def output(
    new: list[tuple[str, tuple[list[int], ...], int]] | None = None,
    cached: list[tuple[str, tuple[list[int], ...] | None, int]] | None = None,
    tokens: dict[str, int] | None = None,
    preempted: set[str] | None = None,
    resumed: set[str] | None = None,
    drafts: dict[str, list[int]] | None = None,
) -> Any:
    again = cached or []
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, block_ids=ids, num_computed_tokens=computed)
            for name, ids, computed in new or []
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _, _ in again],
            new_block_ids=[ids for _, ids, _ in again],
            num_computed_tokens=[computed for _, _, computed in again],
            resumed_req_ids=resumed or set(),
        ),
        num_scheduled_tokens=tokens or {},
        total_num_scheduled_tokens=sum((tokens or {}).values()),
        preempted_req_ids=preempted,
        scheduled_spec_decode_tokens=drafts or {},
    )


def test_the_ticket_survives_the_parameters() -> None:
    task = from_params(to_params("send", ticket("r"), 99))
    assert task is not None
    assert (task.ticket, task.tokens) == (ticket("r"), 99)
    assert from_params(None) is None
    assert from_params({"other": 1}) is None


@pytest.mark.parametrize(("tokens", "local", "claim"), [(100, 0, 99), (100, 96, 3), (97, 96, 0)])
def test_d_claims_all_but_the_last_token(tokens: int, local: int, claim: int) -> None:
    half = SchedulerHalf(FULL)
    wanted = request("receive", tokens)
    half.new_request(wanted)
    assert half.matched_tokens(wanted, local) == claim
    assert half.matched_tokens(wanted, local) == claim, "asking has no side effects"


def test_d_fetches_only_what_it_lacks_into_its_own_blocks_once() -> None:
    half = SchedulerHalf(FULL)
    wanted = request("receive", 100)
    half.new_request(wanted)
    half.allocated(wanted, blocks([9, 8, 7, 6, 5, 4, 3], shared=2), 99 - 32)
    assert half.pending
    (fetch,) = half.step(output()).fetches
    assert (fetch.first_block, fetch.block_ids) == (2, [7, 6, 5, 4, 3])
    half.allocated(wanted, blocks([9, 8, 7, 6, 5, 4, 3]), 0)
    assert half.matched_tokens(wanted, 0) == 0, "a failed load is not claimed again"
    assert half.step(output()).fetches == []


def test_d_counts_a_canonical_handoff_in_canonical_blocks() -> None:
    """Of 99 tokens it has 32, one block of its own; of its last block it needs a part."""
    half = SchedulerHalf([KvGroup(32)])
    wanted = request("receive", 100, canonical=True)
    half.new_request(wanted)
    assert half.matched_tokens(wanted, 32) == 67
    half.allocated(wanted, blocks([9, 8, 7, 6], shared=1), 67)
    (fetch,) = half.step(output()).fetches
    assert (fetch.first_block, fetch.block_ids) == (2, [16, 17, 14, 15, 12])
    wanted = request("receive", 100, "r#1", canonical=True)
    half.new_request(wanted)
    with pytest.raises(RuntimeError, match="share"):
        half.allocated(wanted, blocks([9, 8, 7, 6], shared=2), 67)


def test_p_reports_canonical_blocks_as_soon_as_each_holds_kv() -> None:
    half = SchedulerHalf([KvGroup(64)])
    half.new_request(request("send", 150, canonical=True))
    first = half.step(output([("r#0", ([5, 9],), 0)], tokens={"r#0": 100}))
    (progress,) = first.progress
    assert (progress.block_ids, progress.handoff_blocks) == ([20, 21, 22, 23, 36, 37], 10)
    then = half.step(output(cached=[("r#0", ([2],), 100)], tokens={"r#0": 50}))
    (progress,) = then.progress
    assert progress.block_ids == [20, 21, 22, 23, 36, 37, 38, 39, 8, 9]


@pytest.mark.parametrize("groups", [MIXED, [KvGroup(24)], [KvGroup(32), KvGroup(32)]])
def test_without_a_canonical_form_blocks_are_the_engines_own(groups: list[KvGroup]) -> None:
    """The KV thread then ends the handoff, and says why."""
    half = SchedulerHalf(groups)
    task = request("send", 40, canonical=True)
    half.new_request(task)
    held = tuple([4, 5, 6] for _ in groups)
    (progress,) = half.step(output([("r#0", held, 0)], tokens={"r#0": 40})).progress
    assert set(progress.block_ids) <= {4, 5, 6}


def test_blocks_that_others_share_are_never_written() -> None:
    half = SchedulerHalf(FULL)
    wanted = request("receive", 100)
    half.new_request(wanted)
    with pytest.raises(RuntimeError, match="share"):
        half.allocated(wanted, blocks([9, 8, 7, 6, 5, 4, 3], shared=3), 99 - 32)


def test_d_that_lacks_nothing_tells_p_so() -> None:
    half = SchedulerHalf(FULL)
    wanted = request("receive", 97)
    half.new_request(wanted)
    half.allocated(wanted, blocks([1, 2, 3, 4, 5, 6, 7]), 0)
    (fetch,) = half.step(output()).fetches
    assert fetch.block_ids == []


def test_p_follows_chunks_and_offers_once() -> None:
    half = SchedulerHalf(FULL)
    sent = request("send", 40)
    half.new_request(sent)
    plan = half.step(output(new=[("r#0", ([3, 4],), 0)], tokens={"r#0": 20}))
    (first,) = plan.progress
    assert (first.block_ids, first.handoff_blocks) == ([3], 3)
    assert first.offer == ticket("r")
    assert not plan.idle
    (second,) = half.step(output(cached=[("r#0", ([8, 9],), 20)], tokens={"r#0": 20})).progress
    assert (second.block_ids, second.offer) == ([3, 4, 8], None)
    assert first.block_ids == [3], "a plan that is carried out later keeps what it said"


def test_p_preempted_withdraws_and_starts_over() -> None:
    half = SchedulerHalf(FULL)
    half.new_request(request("send", 40))
    half.step(output(new=[("r#0", ([3, 4],), 0)], tokens={"r#0": 20}))
    plan = half.step(output(preempted={"r#0"}))
    assert plan.withdrawn == [KEY]
    assert plan.idle
    again = output(cached=[("r#0", ([11, 12, 13],), 0)], tokens={"r#0": 40}, resumed={"r#0"})
    (progress,) = half.step(again).progress
    assert progress.block_ids == [11, 12, 13]


def test_p_reports_the_blocks_of_all_groups_as_they_are_computed() -> None:
    """Of the window only its end is handed over, and the state when it is final."""
    half = SchedulerHalf(MIXED)
    half.new_request(request("send", 41))
    first = output(new=[("r#0", ([3, 4], [13, 14], [20]), 0)], tokens={"r#0": 32})
    (progress,) = half.step(first).progress
    assert (progress.block_ids, progress.handoff_blocks) == ([3, 4, 14], 6)
    second = output(cached=[("r#0", ([5], [15], []), 32)], tokens={"r#0": 8})
    (progress,) = half.step(second).progress
    assert progress.block_ids == [3, 4, 14, 5, 15, 20]


def test_d_fetches_from_all_groups_what_each_still_needs() -> None:
    half = SchedulerHalf(MIXED)
    wanted = request("receive", 41)
    half.new_request(wanted)
    assert half.matched_tokens(wanted, 16) == 24
    half.allocated(wanted, blocks([1, 2, 3], [0, 12, 13], [20]), 24)
    (fetch,) = half.step(output()).fetches
    assert (fetch.first_block, fetch.block_ids) == (1, [2, 12, 3, 13, 20])


def test_nothing_is_claimed_where_no_block_is_needed() -> None:
    """At the end of a chunk the next token needs none before it; a load of no blocks never ends."""
    half = SchedulerHalf([KvGroup(16, Kept.CHUNK, 32)])
    for tokens, claim in ((33, 0), (40, 39)):
        wanted = request("receive", tokens, f"r#{tokens}")
        half.new_request(wanted)
        assert half.matched_tokens(wanted, 0) == claim


@pytest.mark.parametrize("lacking", [[0, 0, 13], [0, 12]])
def test_a_block_that_vllm_did_not_give_is_never_written(lacking: list[int]) -> None:
    half = SchedulerHalf(MIXED)
    wanted = request("receive", 41)
    half.new_request(wanted)
    with pytest.raises(RuntimeError, match="share"):
        half.allocated(wanted, blocks([1, 2, 3], lacking, [20]), 40)


@pytest.mark.parametrize("aborted", [False, True])
def test_p_keeps_blocks_only_of_what_it_offered(*, aborted: bool) -> None:
    half = SchedulerHalf(FULL)
    sent = request("send", 40)
    half.new_request(sent)
    assert half.finished(sent, [], aborted=aborted) is False
    half.new_request(sent)
    half.step(output(new=[("r#0", ([3, 4, 5],), 0)], tokens={"r#0": 40}))
    assert half.finished(sent, [], aborted=aborted) is True
    assert bool(half.step(output()).releases) == aborted
    assert half.finished(sent, [], aborted=aborted) is False


def test_an_aborted_load_is_released_and_others_are_left_alone() -> None:
    half = SchedulerHalf(FULL)
    wanted = request("receive", 40)
    half.new_request(wanted)
    half.allocated(wanted, blocks([1, 2, 3]), 39)
    half.step(output())
    assert half.finished(wanted, [], aborted=True) is False
    assert half.step(output()).releases == [(KEY, "aborted in the engine")]
    plain = request(None, 40, "plain#1")
    half.new_request(plain)
    half.allocated(plain, blocks([1, 2, 3]), 0)
    assert half.matched_tokens(plain, 0) == 0
    assert half.finished(plain, [], aborted=True) is False
    assert half.step(output()).kept == [(("plain", 1), [])]
    assert not half.pending


@pytest.mark.parametrize("side", [None, "receive"])
def test_the_blocks_of_an_aborted_stream_stay(side: Side | None) -> None:
    """All that hold KV of its tokens but the last, and not the ones that were given ahead."""
    half = SchedulerHalf(FULL)
    stream = request(side, 40, "r#3", made=9, computed=49)
    half.new_request(stream)
    half.allocated(stream, blocks([1, 2, 3]), 39)
    half.step(output())
    assert half.finished(stream, ([1, 2, 3, 7],), aborted=True) is True
    plan = half.step(output())
    assert (plan.kept, plan.releases) == ([(("r", 3), [1, 2, 3])], [])


@pytest.mark.parametrize(
    ("groups", "made", "computed"),
    [
        (FULL, 0, 40),
        (FULL, 9, 0),
        (FULL, 9, 47),
        ([KvGroup(16, Kept.WINDOW, 20)], 9, 49),
        ([KvGroup(16), KvGroup(16)], 9, 49),
    ],
    ids=["no token yet", "preempted", "computed again", "window", "groups"],
)
def test_nothing_stays_of_a_stream_that_cannot_go_on_from_its_blocks(
    groups: list[KvGroup], made: int, computed: int
) -> None:
    half = SchedulerHalf(groups)
    stream = request(None, 40, made=made, computed=computed)
    ids = tuple([1, 2, 3, 4] for _ in groups)
    assert half.finished(stream, ids, aborted=True) is False
    assert half.step(output()).kept == [(KEY, [])]


def test_a_stream_that_ended_by_itself_leaves_nothing() -> None:
    half = SchedulerHalf(FULL)
    assert half.finished(request(None, 40, made=9, computed=49), ([1],), aborted=False) is False
    assert not half.pending

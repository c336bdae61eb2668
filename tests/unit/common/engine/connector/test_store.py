"""What fills the store, what is withdrawn from it, and which prompts it serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.blocks import Kept, KvGroup
from common.clock import ManualClock
from common.config import StoreConfig
from common.engine.connector.scheduler import SchedulerHalf
from common.engine.connector.store import StoreScheduler
from common.engine.connector.store_setup import store_slots, why_no_store
from common.kv.store.recency import owner_of
from common.kv.store.results import StoreResults
from common.kv.store.table import StoreTable
from tests.unit.common.engine.connector import test_scheduler as made

BLOCK = 16
BACKLOG = 4


class Rig:
    """The scheduler half with a store, and the worker half played."""

    def __init__(self, slots: int = 16, ranks: int = 1) -> None:
        self.clock = ManualClock()
        self.table = StoreTable(slots, 300, ranks)
        store = StoreScheduler(self.table, BLOCK, BACKLOG, self.clock.monotonic)
        self.half = SchedulerHalf([KvGroup(BLOCK)], store)

    def add(
        self, name: str, tokens: int, side: Any = None, *, prefix: str = "p", salt: str = ""
    ) -> Any:
        """A request whose prompts share what their prefixes do."""
        request = made.request(side, tokens, name)
        request.cache_salt = salt or None
        request.num_tokens, request.num_computed_tokens = tokens, 0
        request.block_hashes = [f"{prefix}{at}".encode() for at in range(tokens // BLOCK)]
        self.half.new_request(request)
        return request

    def new(self, request: Any, ids: list[int], tokens: int, cached: int = 0) -> Any:
        """The plan of a step that schedules it for the first time."""
        name = request.request_id
        return self.step(made.output(new=[(name, (ids,), cached)], tokens={name: tokens}))

    def more(self, request: Any, ids: list[int], computed: int, tokens: int, **kinds: Any) -> Any:
        name = request.request_id
        cached: list[Any] = [(name, (ids,) if ids else None, computed)]
        return self.step(made.output(cached=cached, tokens={name: tokens}, **kinds))

    def step(self, output: Any) -> Any:
        plan = self.half.step(output).store
        assert plan is not None
        self.table.check_invariants()
        return plan

    def done(self, plan: Any, **results: Any) -> None:
        """All that the plan saves was saved."""
        written = [copy.slot for copy in plan.saves]
        self.half.copies_ended(StoreResults(written=written, **results), (), ())

    def store(self, blocks: int, prefix: str = "p") -> None:
        """So many blocks of this prefix are in the store; the engine has let them go."""
        request = self.add("filler", blocks * BLOCK, prefix=prefix)
        plan = self.new(request, list(range(900, 900 + blocks)), blocks * BLOCK)
        self.half.finished(request, [], aborted=False)
        while plan.saves:
            self.done(plan)
            plan = self.step(made.output())


def saved(plan: Any) -> list[tuple[int, bytes]]:
    return [(copy.block_id, copy.name.block_hash) for copy in plan.saves]


def test_blocks_are_saved_as_they_fill() -> None:
    rig = Rig()
    request = rig.add("a#0", 40)
    assert saved(rig.new(request, [3, 4], 20)) == [(3, b"p0")]
    assert saved(rig.more(request, [5], 20, 20)) == [(4, b"p1")]


def test_a_generated_block_is_saved_when_its_hash_is_known() -> None:
    """With asynchronous scheduling that is a step after it was computed."""
    rig = Rig()
    request = rig.add("a#0", 15)
    rig.new(request, [3], 15)
    assert saved(rig.more(request, [], 15, 1)) == []
    request.block_hashes.append(b"g0")
    assert saved(rig.more(request, [4], 16, 1)) == [(3, b"g0")]


def test_a_block_that_drafts_filled_is_saved_when_its_tokens_are_the_texts() -> None:
    """Of a draft that is refused, other tokens take the place."""
    rig = Rig()
    request = rig.add("a#0", 12)
    rig.new(request, [3], 12)
    request.block_hashes.append(b"g0")
    assert saved(rig.more(request, [4], 12, 5, drafts={"a#0": [7, 7, 7, 7]})) == []
    assert saved(rig.more(request, [], 14, 3, drafts={"a#0": [7, 7]})) == []
    assert saved(rig.more(request, [], 15, 2, drafts={"a#0": [7]})) == [(3, b"g0")]


def test_what_the_engine_had_is_not_saved_again() -> None:
    rig = Rig()
    request = rig.add("a#0", 48)
    assert saved(rig.new(request, [3, 4, 5], 32, cached=16)) == [(4, b"p1"), (5, b"p2")]


def test_a_block_is_saved_once_however_many_requests_fill_it() -> None:
    rig = Rig()
    first, second = rig.add("a#0", 16), rig.add("b#0", 16)
    plan = rig.new(first, [3], 16)
    assert saved(rig.new(second, [4], 16)) == []
    rig.done(plan)
    assert rig.half.pending, "nobody knows yet that it is held"
    assert rig.step(made.output()).counts.held == 1
    assert not rig.half.pending


def test_the_backlog_is_bounded_and_the_rest_has_its_turn() -> None:
    rig = Rig()
    request = rig.add("a#0", 6 * BLOCK)
    first = rig.new(request, [1, 2, 3, 4, 5, 6], 6 * BLOCK)
    assert [block for block, _ in saved(first)] == [1, 2, 3, 4]
    rig.half.finished(request, [], aborted=False)
    assert saved(rig.step(made.output())) == [], "nothing of it has ended"
    rig.half.copies_ended(StoreResults(written=[first.saves[0].slot]), (), ())
    second = rig.step(made.output())
    assert [block for block, _ in saved(second)] == [5]
    assert rig.half.pending, "steps go on until all is saved"
    rig.half.copies_ended(StoreResults(written=[c.slot for c in first.saves[1:]]), (), ())
    rig.done(second)
    rig.done(rig.step(made.output()))
    assert rig.step(made.output()).counts.held == 6
    assert not rig.half.pending


def test_what_filled_last_is_saved_after_the_request_has_finished() -> None:
    rig = Rig()
    request = rig.add("a#0", 15)
    rig.new(request, [3], 15)
    rig.more(request, [], 15, 1)
    request.block_hashes.append(b"g0")
    rig.half.finished(request, [], aborted=True)
    assert rig.half.pending
    assert saved(rig.step(made.output())) == [(3, b"g0")]


def test_a_block_that_is_overwritten_first_is_skipped() -> None:
    rig = Rig()
    first = rig.add("a#0", 6 * BLOCK)
    rig.new(first, [1, 2, 3, 4, 5, 6], 6 * BLOCK)
    rig.half.finished(first, [], aborted=False)
    second = rig.add("b#0", 5, prefix="q")
    plan = rig.new(second, [6], 5)
    assert plan.counts.skipped == 1
    rig.half.copies_ended(StoreResults(written=[0, 1, 2, 3]), (), ())
    assert [block for block, _ in saved(rig.step(made.output()))] == [5]


def test_a_save_that_waits_is_withdrawn_before_its_block_is_overwritten() -> None:
    rig = Rig()
    first = rig.add("a#0", 48)
    plan = rig.new(first, [3, 4, 5], 48)
    rig.half.finished(first, [], aborted=False)
    second = rig.add("b#0", 32, prefix="q")
    again = rig.new(second, [4], 16)
    assert again.withdrawn == [4]
    assert saved(again) == [(4, b"q0")], "what it holds after this step"
    third = rig.more(second, [5], 16, 16)
    assert third.withdrawn == [5]
    slots = {copy.block_id: copy.slot for copy in plan.saves}
    rig.half.copies_ended(StoreResults(written=[slots[3]], dropped=[slots[4], slots[5]]), (), ())
    wanted = rig.add("c#0", 100)
    assert rig.half.matched_tokens(wanted, 0) == BLOCK


def test_blocks_that_a_load_overwrites_are_withdrawn() -> None:
    """D's handoff writes before any step tells of its blocks."""
    rig = Rig()
    first = rig.add("a#0", 32)
    rig.new(first, [3, 4], 32)
    rig.half.finished(first, [], aborted=False)
    wanted = rig.add("r#0", 41, "receive", prefix="q")
    rig.half.allocated(wanted, made.blocks([9, 4, 8], shared=1), 24)
    plan = rig.step(made.output())
    assert plan.withdrawn == [4]
    assert not plan.loads


def test_a_prompt_is_served_up_to_its_last_token() -> None:
    rig = Rig()
    rig.store(4)
    for tokens, local, claim in ((64, 0, 48), (65, 0, 64), (65, 32, 32), (64, 48, 0), (16, 0, 0)):
        wanted = rig.add(f"w{tokens}-{local}", tokens)
        assert rig.half.matched_tokens(wanted, local) == claim
    assert rig.half.matched_tokens(rig.add("other", 65, prefix="q"), 0) == 0


def test_a_load_is_planned_once_and_kept_from_eviction_until_it_ends() -> None:
    rig = Rig(slots=3)
    rig.store(3)
    wanted = rig.add("w#0", 49)
    assert rig.half.matched_tokens(wanted, 16) == 32
    rig.half.allocated(wanted, made.blocks([7, 8, 9], shared=1), 32)
    plan = rig.step(made.output())
    (load,) = plan.loads
    assert load.request_id == "w#0"
    assert [(copy.block_id, copy.name.block_hash) for copy in load.copies] == [
        (8, b"p1"),
        (9, b"p2"),
    ]
    assert rig.step(made.output()).loads == []
    other = rig.add("o", 64, prefix="q")
    assert len(saved(rig.new(other, [1, 2, 3, 4], 64))) == 1, "two slots are being read"
    rig.half.copies_ended(StoreResults(), ("w#0",), ())
    rig.table.check_invariants()
    assert len(saved(rig.step(made.output()))) == 2


def test_loaded_blocks_are_not_saved_again_and_the_tail_is() -> None:
    rig = Rig()
    rig.store(2)
    wanted = rig.add("w#0", 60)
    rig.half.matched_tokens(wanted, 0)
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    rig.step(made.output())
    rig.half.copies_ended(StoreResults(), ("w#0",), ())
    wanted.num_computed_tokens = 32
    rig.half.allocated(wanted, made.blocks([7, 8, 9, 10]), 0)
    assert saved(rig.new(wanted, [7, 8, 9, 10], 28, cached=32)) == [(9, b"p2")]


def test_a_failed_load_is_not_claimed_again_and_the_damaged_block_is_stored_anew() -> None:
    rig = Rig()
    rig.store(2)
    wanted = rig.add("w#0", 40)
    rig.half.matched_tokens(wanted, 0)
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    (load,) = rig.step(made.output()).loads
    rig.half.copies_ended(StoreResults(damaged=[load.copies[1].slot]), {"w#0"}, {"w#0"})
    assert rig.half.matched_tokens(wanted, 0) == 0
    rig.half.allocated(wanted, made.blocks([7, 8, 9]), 0)
    assert saved(rig.new(wanted, [7, 8, 9], 40)) == [(8, b"p1")]
    assert rig.half.matched_tokens(rig.add("x#0", 40), 0) == BLOCK


def test_p_is_served_and_hands_the_whole_prompt_over() -> None:
    rig = Rig()
    rig.store(2)
    wanted = rig.add("r#0", 40, "send")
    assert rig.half.matched_tokens(wanted, 0) == 32
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    plan = rig.half.step(made.output())
    assert plan.progress == []
    rig.half.copies_ended(StoreResults(), ("r#0",), ())
    output = made.output(new=[("r#0", ([7, 8, 9],), 32)], tokens={"r#0": 8})
    (progress,) = rig.half.step(output).progress
    assert progress.block_ids == [7, 8, 9]


def test_d_with_a_ticket_asks_p_first_and_the_store_after_a_failure() -> None:
    rig = Rig()
    rig.store(2)
    wanted = rig.add("r#0", 40, "receive")
    assert rig.half.matched_tokens(wanted, 0) == 39
    rig.half.allocated(wanted, made.blocks([7, 8, 9]), 39)
    plan = rig.half.step(made.output())
    assert plan.store is not None
    assert (len(plan.fetches), plan.store.loads) == (1, [])
    rig.half.copies_ended(StoreResults(), {"r#0"}, {"r#0"})
    assert rig.half.matched_tokens(wanted, 0) == 32, "another kind of load has failed"


def test_what_came_by_a_handoff_is_saved_on_d() -> None:
    rig = Rig()
    wanted = rig.add("r#0", 40, "receive")
    rig.half.allocated(wanted, made.blocks([7, 8, 9], shared=1), 23)
    rig.step(made.output())
    assert saved(rig.new(wanted, [7, 8, 9], 1, cached=39)) == [(8, b"p1")]


def test_a_preempted_request_finds_its_own_blocks() -> None:
    rig = Rig()
    request = rig.add("a#0", 40)
    rig.done(rig.new(request, [3, 4, 5], 40))
    rig.step(made.output(preempted={"a#0"}))
    assert rig.half.matched_tokens(request, 0) == 32
    rig.half.allocated(request, made.blocks([7, 8]), 32)
    assert len(rig.step(made.output()).loads) == 1
    rig.half.copies_ended(StoreResults(), ("a#0",), ())
    request.num_computed_tokens, request.num_tokens = 32, 48
    request.block_hashes.append(b"g2")
    plan = rig.more(request, [7, 8, 9], 32, 16, resumed={"a#0"})
    assert saved(plan) == [(9, b"g2")]


def test_a_resumed_request_does_not_overwrite_what_the_engine_kept() -> None:
    rig = Rig()
    request = rig.add("a#0", 6 * BLOCK)
    rig.new(request, [1, 2, 3, 4, 5, 6], 6 * BLOCK)
    rig.step(made.output(preempted={"a#0"}))
    plan = rig.more(request, [1, 2, 3, 4, 5, 6, 7], 6 * BLOCK, 1, resumed={"a#0"})
    assert (plan.withdrawn, plan.counts.skipped) == ([], 0)
    assert rig.half.pending


def test_a_prompt_is_stored_from_where_it_was_computed_after_a_failed_load() -> None:
    """Meanwhile the engine has let go what it had when the load began."""
    rig = Rig()
    wanted = rig.add("r#0", 40, "receive")
    rig.half.allocated(wanted, made.blocks([7, 8, 9], shared=1), 23)
    rig.step(made.output())
    rig.half.copies_ended(StoreResults(), {"r#0"}, {"r#0"})
    rig.half.allocated(wanted, made.blocks([1, 2, 3]), 0)
    assert saved(rig.new(wanted, [1, 2, 3], 40)) == [(1, b"p0"), (2, b"p1")]


def test_a_preempted_request_that_is_aborted_saves_nothing_more() -> None:
    rig = Rig()
    request = rig.add("a#0", 15)
    rig.new(request, [3], 15)
    rig.more(request, [], 15, 1)
    rig.step(made.output(preempted={"a#0"}))
    request.block_hashes.append(b"g0")
    rig.half.finished(request, [], aborted=True)
    assert not rig.step(made.output()).saves
    assert not rig.half.pending


def test_an_aborted_load_is_kept_until_its_copies_have_ended() -> None:
    rig = Rig(slots=2)
    rig.store(2)
    wanted = rig.add("w#0", 40)
    rig.half.matched_tokens(wanted, 0)
    rig.half.allocated(wanted, made.blocks([7, 8]), 32)
    rig.step(made.output())
    assert rig.half.finished(wanted, [], aborted=True) is False
    other = rig.add("o", 16, prefix="q")
    assert saved(rig.new(other, [1], 16)) == []
    rig.half.copies_ended(StoreResults(), ("w#0",), ())
    assert len(saved(rig.step(made.output()))) == 1


def test_a_claim_that_vllm_did_not_take_is_forgotten() -> None:
    """Prompts with log probabilities are computed whatever is claimed."""
    rig = Rig()
    rig.store(2)
    wanted = rig.add("w#0", 40)
    assert rig.half.matched_tokens(wanted, 0) == 32
    rig.half.allocated(wanted, made.blocks([7, 8, 9]), 0)
    assert rig.step(made.output()).loads == []


def test_blocks_that_others_share_are_never_written() -> None:
    rig = Rig()
    rig.store(2)
    wanted = rig.add("w#0", 40)
    rig.half.matched_tokens(wanted, 0)
    with pytest.raises(RuntimeError, match="share"):
        rig.half.allocated(wanted, made.blocks([7, 8], shared=1), 32)


def test_all_ranks_must_have_saved_a_block() -> None:
    rig = Rig(ranks=2)
    request = rig.add("a#0", 16)
    plan = rig.new(request, [3], 16)
    wanted = rig.add("w#0", 40)
    rig.done(plan)
    assert rig.half.matched_tokens(wanted, 0) == 0
    assert rig.half.pending
    rig.done(plan)
    assert rig.half.matched_tokens(wanted, 0) == BLOCK


def test_a_use_in_the_engine_s_own_cache_keeps_a_block() -> None:
    rig = Rig()
    rig.store(1)
    rig.clock.advance(200)
    hit = rig.add("a#0", 17)
    rig.new(hit, [3, 4], 1, cached=16)
    rig.half.finished(hit, [], aborted=False)
    rig.clock.advance(200)
    rig.step(made.output())
    assert rig.half.matched_tokens(rig.add("w#0", 40), 0) == BLOCK
    rig.clock.advance(200)
    assert rig.step(made.output()).counts.expired == 1


def test_slots_are_what_the_memory_holds_on_all_ranks() -> None:
    assert store_slots(StoreConfig(ram_mib=3), 1 << 20, 1) == 3
    assert store_slots(StoreConfig(ram_mib=3), 1 << 20, 2) == 1
    assert store_slots(StoreConfig(), 1 << 20, 1) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"device": "cuda"}, ""),
        ({"device": "xpu"}, "KV on xpu"),
        ({"drafter_has_kv": False}, ""),
        ({"drafter_has_kv": True}, "drafter has KV of its own"),
        ({"caching": False}, "prefix caching"),
        ({"groups": [KvGroup(16), KvGroup(16)]}, "part of the tokens"),
        ({"groups": [KvGroup(16, Kept.WINDOW, 64)]}, "part of the tokens"),
    ],
)
def test_where_it_cannot_be_right_there_is_no_store(change: dict[str, Any], why: str) -> None:
    has_kv = change.get("drafter_has_kv")
    drafts = SimpleNamespace(uses_draft_kv_cache=lambda: has_kv) if has_kv is not None else None
    engine: Any = SimpleNamespace(
        device_config=SimpleNamespace(device_type=change.get("device", "cpu")),
        speculative_config=drafts,
        cache_config=SimpleNamespace(enable_prefix_caching=change.get("caching", True)),
    )
    told = why_no_store(engine, change.get("groups", [KvGroup(16)]))
    assert bool(told) == bool(why)
    assert why in told


def test_a_saved_block_belongs_to_the_tenant_of_its_request() -> None:
    rig = Rig()
    owned = rig.add("a#0", 16, salt="tenant:a/x")
    (save,) = rig.new(owned, [3], 16).saves
    assert rig.table.owner_in(save.slot) == owner_of("tenant:a")
    anonymous = rig.add("b#0", 16, prefix="q")
    (save,) = rig.new(anonymous, [4], 16).saves
    assert rig.table.owner_in(save.slot) == b""

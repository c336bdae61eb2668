"""Admission and placement by what a model's KV cache groups keep, and not by tokens alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.blocks import Kept, KvGroup
from common.errors import Code
from common.messages import Decode, Fleet, KvReport, Prefill, Refused, Role
from services.router.degradation.detector import Cause
from services.router.placement.policies import cost
from services.router.placement.types import PlacementContext, Rates, ResourceRequest
from services.router.queue.fair_class import QueueAhead
from services.router.rules.admit import kv_ahead, predicted
from tests.rigs import messages
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.views import view

WINDOW = KvGroup(16, Kept.WINDOW, 32, in_flight=64)
MIXED = (KvGroup(16), WINDOW, WINDOW)
LONG: dict[str, Any] = {"prompt": 600, "out": 200}


def started(groups: tuple[KvGroup, ...], blocks: int) -> Rig:
    rig = Rig()
    rig.gateway()
    for worker in (
        rig.prefill(groups=groups, blocks=200),
        rig.decode(groups=groups, blocks=blocks),
    ):
        rig.beat(worker)
    return rig


def test_a_window_is_promised_once_however_long_the_request() -> None:
    rig = started((WINDOW,), blocks=8)
    for n in range(2):
        rig.submit(f"r{n}", **LONG)
    assert len(rig.take(Decode)) == 2
    assert rig.row("d0|1").held_tokens == 2 * 3 * 16
    assert rig.row("p0|1").held_tokens == 2 * 7 * 16, "P computes in steps of 64 tokens"


def test_p_needs_room_for_the_steps_in_which_it_computes() -> None:
    """7 of its 11 blocks are promised; the second prompt would end in 3, and needs 7 on the way."""
    rig = Rig()
    rig.gateway()
    for worker in (
        rig.prefill(groups=(WINDOW,), blocks=12),
        rig.decode(groups=(WINDOW,), blocks=200),
    ):
        rig.beat(worker)
    rig.submit("r0", **LONG)
    assert len(rig.take(Prefill)) == 1
    rig.submit("r1", **LONG)
    assert rig.take(Prefill) == []


def test_every_group_takes_its_share_of_the_blocks() -> None:
    rig = started(MIXED, blocks=60)
    rig.submit("r1", **LONG)
    assert rig.take(Decode)
    assert rig.row("d0|1").held_tokens == (50 + 3 + 3) * 16
    rig.submit("r2", prompt=16, out=1)
    assert rig.take(Decode) == [], "2 blocks in each group, and 1 block is left of 57"


def test_what_never_fits_is_refused_by_all_groups_together() -> None:
    rig = started(MIXED, blocks=55)
    rig.submit("r1", **LONG)
    (refused,) = rig.take(Refused)
    assert refused.code == Code.CONTEXT_LENGTH_EXCEEDED


def test_a_window_makes_a_handoff_cheap() -> None:
    """Of 1,000 tokens a window of 32 moves 3 blocks, 2 of which a shared prefix cannot save."""
    full = view("d0", kv_token_bytes=1000.0)
    windowed = full._replace(kv_groups=(WINDOW,))
    assert full.kv_bytes(1000, 0) == 1_000_000
    assert windowed.kv_bytes(1000, 0) == 3 * 16_000
    assert windowed.kv_bytes(1000, 976) == 2 * 16_000
    rates = Rates(kv_bytes_per_s=1e6, prefill_tokens_per_s=1e6, step_s=0.0)
    context = PlacementContext(ResourceRequest(1000, 1), rates=rates)
    assert cost.decode_scores(context, [full])[0][0] == pytest.approx(1.0, rel=0.01)
    assert cost.decode_scores(context, [windowed])[0][0] == pytest.approx(0.048, rel=0.1)
    p0 = view("p0")
    assert cost.prefill_scores(context, [p0], full)[0][0] == pytest.approx(1.0)
    assert cost.prefill_scores(context, [p0], windowed)[0][0] == pytest.approx(0.048)


def test_a_prompt_of_a_state_is_handed_over_however_short() -> None:
    """A block of tokens is computed sooner than handed over; a block with a state says nothing."""
    state = view("d0", kv_groups=(KvGroup(16), KvGroup(4096, Kept.STATE)))
    assert view("d0").is_one_block(16)
    assert not view("d0").is_one_block(17)
    assert not state.is_one_block(16)


def test_what_waits_counts_by_groups_too() -> None:
    """Ten prompts of 800 tokens ahead: by a window 30 blocks, and not 500."""
    ahead = QueueAhead(10, 6_000, 8_000)
    assert kv_ahead(view("d0"), ahead) == 8_000
    assert kv_ahead(view("d0", kv_groups=(WINDOW,)), ahead) == 10 * 3 * 16
    assert kv_ahead(view("d0", kv_groups=MIXED), ahead) == 10 * (50 + 3 + 3) * 16
    assert kv_ahead(view("d0", kv_groups=MIXED), QueueAhead()) == 0


def test_a_request_is_predicted_to_wait_for_the_blocks_of_all_groups() -> None:
    rig = started(MIXED, blocks=60)
    rig.submit("r1", **LONG)
    rig.started("r1")
    assert rig.core.tables.snapshots.totals(Role.DECODE).latest.kv_groups == MIXED
    rig.submit("r2", prompt=10, out=1)
    (waits,) = rig.core.tables.waiting
    assert predicted(rig.core.tables, waits, QueueAhead()).decode_wait > 0, "3 blocks, 1 is left"


def test_prefixes_are_named_only_where_they_are_kept() -> None:
    rig = Rig(prefixes=True)
    rig.gateway()
    for keeps in (True, False):
        capacity = msgspec.structs.replace(messages.capacity(), keeps_prefixes=keeps)
        rig.beat(rig.decode(incarnation=str(keeps), capacity=capacity))
        assert rig.take(Fleet)[-1].block_tokens == (16 if keeps else 0)


@pytest.mark.parametrize(("complete", "cached", "bad"), [(True, 0, 0), (False, 0, 1)])
def test_a_handoff_that_broke_off_is_a_prompt_computed_anew(
    complete: bool, cached: int, bad: int
) -> None:
    """However many blocks had come: of several groups they say nothing of tokens."""
    rig = started(MIXED, blocks=200)
    rig.submit("r1", **LONG)
    kv = KvReport(blocks=40, complete=complete, payload_bytes=40 * 1024, messages=1)
    rig.started("r1", kv=kv)
    observed = rig.core.tables.degradation.failed[Cause.RECOMPUTED]
    assert observed == bad

"""A pool gets the blocks of a stream that is over, as they come to the store."""

from __future__ import annotations

import msgspec
import pytest

from common.engine.connector import checkpoint
from common.kv.store.results import StoreResults
from tests.unit.common.engine.connector import test_scheduler as made
from tests.unit.common.engine.connector.test_checkpoint import (
    HOLDER,
    KEY,
    CopyRig,
    names,
    offered,
)

POOL = msgspec.structs.replace(HOLDER, lasting=True)


def test_a_prompt_that_is_computed_and_over_is_offered_once_it_is_stored() -> None:
    rig = CopyRig()
    request = rig.stream(40, POOL)
    plan = rig.new(request, [3, 4, 5], 40)
    rig.half.finished(request, [], aborted=False)
    assert rig.half.pending, "a step is needed to offer it"
    rig.done(plan)
    plan = rig.step(made.output())
    assert offered(plan) == [(b"p0p1", names(2), 2)]
    assert plan.ended_offers == [KEY]
    assert not rig.half.pending


def test_to_another_holder_nothing_is_offered_after_the_end() -> None:
    rig = CopyRig()
    request = rig.stream(40)
    plan = rig.new(request, [3, 4, 5], 40)
    rig.half.finished(request, [], aborted=False)
    rig.done(plan)
    plan = rig.step(made.output())
    assert (offered(plan), plan.ended_offers) == ([], [KEY])


def test_it_ends_at_the_first_block_that_never_comes_to_the_store() -> None:
    rig = CopyRig()
    request = rig.stream(48, POOL)
    plan = rig.new(request, [3, 4, 5], 48)
    first, second, third = (copy.slot for copy in plan.saves)
    rig.half.finished(request, [], aborted=False)
    rig.half.copies_ended(StoreResults(written=[first, third], dropped=[second]), (), ())
    plan = rig.step(made.output())
    assert (offered(plan), plan.ended_offers) == ([(b"p0", names(1), 3)], [KEY])


def test_few_streams_that_are_over_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LEAVING_MAX", 0)
    rig = CopyRig()
    request = rig.stream(40, POOL)
    plan = rig.new(request, [3, 4, 5], 40)
    rig.half.finished(request, [], aborted=False)
    rig.done(plan)
    plan = rig.step(made.output())
    assert (offered(plan), plan.ended_offers) == ([], [KEY])


def test_steps_go_on_until_the_last_of_a_long_prompt_is_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "LOOK_AHEAD", 1)
    rig = CopyRig()
    request = rig.stream(48, POOL)
    plan = rig.new(request, [3, 4, 5], 48)
    rig.half.finished(request, [], aborted=False)
    rig.done(plan)
    found = []
    while rig.half.pending:
        found += offered(rig.step(made.output()))
    assert [hashes for hashes, _, _ in found] == [b"p0", b"p1", b"p2"]

"""Blocks of a running stream for another holder: which are offered, when, and under which names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.engine.connector import checkpoint
from common.engine.connector.metadata import (
    StoreOffer,
    StorePlan,
    holder_of,
    holder_params,
    source_params,
)
from common.engine.connector.scheduler import SchedulerHalf
from common.engine.connector.store import StoreScheduler
from common.kv.store.recency import owner_of
from common.kv.store.results import StoreResults
from common.messages import KvHolder, KvSource
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from tests.unit.common.engine.connector import test_scheduler as made
from tests.unit.common.engine.connector.test_store import BACKLOG, BLOCK, Rig, saved

HOLDER = KvHolder(name="d2", incarnation="i", fingerprint="f", kv_address="h:2")
A = "a#1"
KEY = ("a", 1)
SALT = "tenant"


def names(count: int, first: int = 0) -> bytes:
    return prefix_hashes(pack_ids(list(range(count * BLOCK))), BLOCK, SALT)[8 * first :]


class CopyRig(Rig):
    """With holders of the fingerprint `f`."""

    def __init__(self, slots: int = 16, fingerprint: str = "f") -> None:
        super().__init__(slots)
        clock = self.clock.monotonic
        store = StoreScheduler(self.table, BLOCK, BACKLOG, clock, fingerprint=fingerprint)
        self.half = SchedulerHalf(self.half._groups, store)

    def stream(self, tokens: int, holder: KvHolder = HOLDER, **about: Any) -> Any:
        request = made.request(None, tokens, A)
        request.num_computed_tokens = 0
        request.kv_transfer_params = holder_params(holder)
        request.block_hashes = [f"p{at}".encode() for at in range(tokens // BLOCK)]
        request.all_token_ids = list(range(1000))
        request.cache_salt = about.get("salt", SALT)
        request.mm_features = about.get("images", [])
        request.lora_request = about.get("lora")
        self.half.new_request(request)
        return request

    def idle(self, request: Any, computed: int) -> Any:
        """A step in which nothing fills."""
        return self.more(request, [], computed, 1)


def offered(plan: StorePlan) -> list[tuple[bytes, bytes, int]]:
    return [(offer.hashes, offer.names, offer.filled) for offer in plan.offers]


def test_the_holder_survives_the_parameters_beside_a_source() -> None:
    source = KvSource(name="p0", incarnation="i", fingerprint="f", kv_address="h:1", tokens=16)
    assert holder_of(source_params(source) | holder_params(HOLDER)) == HOLDER
    assert holder_of(source_params(source)) is None
    assert holder_of(None) is None


def test_blocks_are_offered_once_the_store_has_them() -> None:
    rig = CopyRig()
    request = rig.stream(40)
    plan = rig.new(request, [3, 4, 5], 40)
    assert offered(plan) == [], "they are being saved"
    rig.done(plan)
    plan = rig.idle(request, 40)
    assert plan.offers == [StoreOffer(KEY, HOLDER, b"p0p1", names(2), 2, owner_of(SALT))]
    assert offered(rig.idle(request, 41)) == [], "once"


def test_generated_blocks_follow_under_the_names_of_the_whole() -> None:
    rig = CopyRig()
    request = rig.stream(16)
    rig.done(rig.new(request, [3, 4], 16))
    rig.idle(request, 16)
    request.block_hashes.append(b"g1")
    plan = rig.more(request, [], 17, 15)
    rig.done(plan)
    assert offered(rig.idle(request, 32)) == [(b"g1", names(2, 1), 2)]


def test_what_the_store_has_from_before_is_offered_too() -> None:
    rig = CopyRig()
    rig.store(2)
    request = rig.stream(48)
    plan = rig.new(request, [3, 4, 5], 16, cached=32)
    assert offered(plan) == [(b"p0p1", names(2), 3)]


def test_what_the_store_lacks_is_saved_while_the_engine_has_it() -> None:
    rig = CopyRig()
    request = rig.stream(48)
    plan = rig.new(request, [3, 4, 5], 16, cached=32)
    assert sorted(saved(plan)) == [(3, b"p0"), (4, b"p1"), (5, b"p2")], "of the engine's cache"
    rig.done(plan)
    assert offered(rig.idle(request, 48)) == [(b"p0p1p2", names(3), 3)]


def test_a_hole_is_filled_before_what_comes_after_it() -> None:
    rig = CopyRig()
    request = rig.stream(48)
    plan = rig.new(request, [3, 4, 5], 48)
    first, second, third = (copy.slot for copy in plan.saves)
    rig.half.copies_ended(StoreResults(written=[first, third], dropped=[second]), (), ())
    plan = rig.idle(request, 48)
    assert offered(plan) == [(b"p0", names(1), 3)]
    assert saved(plan) == [(4, b"p1")]
    rig.done(plan)
    assert offered(rig.idle(request, 49)) == [(b"p1p2", names(3, 1), 3)]


def test_a_step_looks_at_a_part_of_a_long_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "LOOK_AHEAD", 2)
    rig = CopyRig()
    rig.store(3)
    request = rig.stream(48)
    assert offered(rig.new(request, [3, 4, 5], 48)) == [(b"p0p1", names(2), 3)]
    assert offered(rig.idle(request, 48)) == [(b"p2", names(3, 2), 3)]


def test_what_routers_do_not_know_by_tokens_alone_has_no_names() -> None:
    rig = CopyRig()
    rig.store(1)
    request = rig.stream(16, images=[object()])
    assert offered(rig.new(request, [3], 16)) == [(b"p0", b"", 1)]


def test_blocks_of_an_adapter_have_the_names_of_its_prompts() -> None:
    rig = CopyRig()
    rig.store(1)
    request = rig.stream(16, lora=SimpleNamespace(lora_name="sql@1"))
    ids = pack_ids(list(range(BLOCK)))
    of_adapter = prefix_hashes(ids, BLOCK, SALT, adapter="sql@1")
    assert offered(rig.new(request, [3], 16)) == [(b"p0", of_adapter, 1)]
    assert of_adapter != names(1)


@pytest.mark.parametrize(("of_rig", "of_holder"), [("f", "g"), ("", "f"), ("", "")])
def test_nothing_is_offered_to_a_holder_of_another_fingerprint_or_by_who_may_not(
    of_rig: str, of_holder: str
) -> None:
    rig = CopyRig(fingerprint=of_rig)
    rig.store(1)
    other = msgspec.structs.replace(HOLDER, fingerprint=of_holder)
    request = rig.stream(16, other)
    plan = rig.new(request, [3], 16)
    rig.half.finished(request, [], aborted=False)
    assert (plan.offers, rig.step(made.output()).ended_offers) == ([], [])


def test_the_end_of_a_stream_is_told_once_in_a_step_of_its_own() -> None:
    rig = CopyRig()
    rig.store(1)
    request = rig.stream(16)
    rig.new(request, [3], 16)
    rig.half.finished(request, [], aborted=False)
    pending = [rig.half.pending]
    assert rig.step(made.output()).ended_offers == [KEY]
    assert [*pending, rig.half.pending] == [True, False]
    assert rig.step(made.output()).ended_offers == []


def test_a_preempted_stream_offers_nothing_until_it_is_computed_again() -> None:
    rig = CopyRig()
    request = rig.stream(48)
    rig.done(rig.new(request, [3, 4], 32))
    plan = rig.step(made.output(preempted={A}))
    assert offered(plan) == []
    plan = rig.more(request, [6, 7, 8], 0, 48, resumed={A})
    assert offered(plan) == [(b"p0p1", names(2), 3)]

"""The headroom that the lowest class leaves, and when a request of it is placed."""

from __future__ import annotations

from typing import Any

from common.config import AdmissionConfig
from common.messages import Load, PriorityClass
from services.router.placement.types import WaitFor
from services.router.records.pace import Pace
from tests.unit.services.router.rig import Rig

BATCH = PriorityClass.BATCH


def computing(**settings: Any) -> Rig:
    """One prefill worker that computes the prompt of `first`, and one decode worker."""
    rig = Rig(remote_prefill="always", **settings)
    rig.gateway()
    rig.beat(rig.prefill(), Load())
    rig.beat(rig.decode(seqs=8), Load())
    rig.submit("first", prompt=500)
    return rig


def test_the_lowest_class_waits_while_a_prompt_is_computed_and_a_higher_one_does_not() -> None:
    rig = computing()
    rig.submit("batch", prompt=300, priority=BATCH)
    rig.submit("standard", prompt=300)
    assert (rig.state("batch"), rig.state("standard")) == ("queued", "placed")
    assert rig.known("batch").waits_for is WaitFor.HEADROOM
    rig.prefilled("first")
    assert rig.state("batch") == "queued", "the other prompt is not computed yet"
    rig.prefilled("standard")
    assert rig.state("batch") == "queued", "neither has its first token on the decode worker"
    rig.started("first")
    assert rig.state("batch") == "queued"
    rig.started("standard")
    assert rig.state("batch") == "placed"


def test_streams_of_the_lowest_class_begin_one_after_the_other() -> None:
    """As many together as the reserve has slots; so they end, where their answers are alike."""
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.beat(rig.decode(seqs=8), Load())
    for number in range(3):
        rig.submit(f"b{number}", prompt=10, priority=BATCH)
    assert [rig.state(f"b{number}") for number in range(3)] == ["placed", "queued", "queued"]
    rig.started("b0", kv=None)
    assert [rig.state(f"b{number}") for number in range(3)] == ["decoding", "placed", "queued"]


def test_the_lowest_class_is_placed_once_a_decode_worker_has_computed_the_other_prompt() -> None:
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.beat(rig.decode(seqs=8), Load())
    rig.submit("first", prompt=500)
    rig.submit("batch", prompt=300, priority=BATCH)
    assert rig.state("batch") == "queued"
    rig.started("first", kv=None)
    assert rig.state("batch") == "placed"


def test_one_begins_where_another_has_ended_and_beyond_that_the_slots_fill_evenly() -> None:
    """An answer of 400 tokens is expected to take 10 s, in which eight slots fill."""
    rig = Rig(remote_prefill="never")
    rig.paced = True
    rig.gateway()
    rig.beat(rig.decode(seqs=8), Load())
    for number in range(8):
        rig.submit(f"b{number}", prompt=10, out=400, priority=BATCH)
    rig.started("b0", kv=None)
    assert rig.state("b1") == "queued"
    rig.tick(1.2, alive=("g0|1", "d0|1"))
    assert rig.state("b1") == "queued"
    rig.tick(0.2, alive=("g0|1", "d0|1"))
    assert (rig.state("b1"), rig.state("b2")) == ("placed", "queued")
    rig.started("b1", kv=None)
    rig.ended("b0")
    assert (rig.state("b2"), rig.state("b3")) == ("placed", "queued")


def test_a_request_of_another_class_takes_no_turn() -> None:
    rig = Rig(remote_prefill="never")
    rig.paced = True
    rig.gateway()
    rig.beat(rig.decode(seqs=8), Load())
    rig.submit("b0", prompt=10, priority=BATCH)
    rig.started("b0", kv=None)
    rig.ended("b0")
    rig.submit("standard", prompt=10)
    rig.started("standard", kv=None)
    rig.submit("b1", prompt=10, priority=BATCH)
    assert rig.state("b1") == "placed", "where b0 has ended"


def test_it_begins_where_it_is_its_turn() -> None:
    rig = Rig(remote_prefill="never")
    rig.paced = True
    rig.gateway()
    for name in ("d0", "d1"):
        rig.beat(rig.decode(name, seqs=8), Load())
    rig.core.tables.workers["d0|1"].pace = Pace(0.0, rig.now)
    rig.submit("batch", prompt=10, priority=BATCH)
    assert rig.known("batch").decode == "d1|1"


def test_the_time_of_an_answer_is_that_of_the_predicted_one() -> None:
    """40 tokens are expected to take 1 s, an eighth of which has passed."""
    rig = Rig(remote_prefill="never")
    rig.paced = True
    rig.gateway()
    rig.beat(rig.decode(seqs=8), Load())
    for number in range(2):
        rig.submit(f"b{number}", prompt=10, out=400, priority=BATCH)
    rig.started("b0", kv=None)
    rig.known("b1").output_tokens = 40
    rig.tick(0.2, alive=("g0|1", "d0|1"))
    assert rig.state("b1") == "placed"


def test_a_continued_request_of_the_lowest_class_needs_no_headroom() -> None:
    rig = computing()
    rig.submit("batch", 2, prompt=300, priority=BATCH)
    assert rig.state("batch", 2) == "placed"


def test_one_whose_class_is_owed_service_needs_no_headroom() -> None:
    """Of two slots one is headroom, and a higher class always waits for the other one."""
    admission = AdmissionConfig(class_floor=0.5, batch_reserve=0.5)
    rig = Rig(remote_prefill="never", admission=admission)
    rig.gateway()
    rig.beat(rig.decode(seqs=2), Load())
    for name in ("long", "short"):
        rig.submit(name, prompt=10)
        rig.started(name, kv=None)
    rig.submit("batch", prompt=10, priority=BATCH)
    for name in ("next", "last"):
        rig.submit(name, prompt=10)
    rig.ended("short")
    rig.started("next", kv=None)
    assert (rig.state("batch"), rig.state("last")) == ("queued", "queued")
    rig.ended("next")
    assert (rig.state("batch"), rig.state("last")) == ("placed", "queued")

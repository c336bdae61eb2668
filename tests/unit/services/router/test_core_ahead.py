"""Prompts that begin before their decode worker has a slot for them: when they may, what is said of
it, and that nothing is promised beyond what ends in time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.config.admission import AdmissionConfig
from common.config.liveness import LivenessConfig
from common.messages import (
    AdapterStatus,
    Beat,
    Decode,
    Leg,
    Load,
    Prefill,
    PrefillEnded,
    PriorityClass,
    RequestSummary,
)
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from services.router.events import Recorded
from tests.rigs.messages import BLOCK
from tests.unit.services.router.rig import MOVED, Rig

SLOTS = 4
PROMPT = 400
LOWEST = max(PriorityClass)


def fleet(*, stay_s: float = 0.1, **more: Any) -> Rig:
    """A decode worker whose slots are all taken by streams, and a prefill worker with room. A
    prompt takes 50 ms, half of a stay, so that two of the four streams should end meanwhile."""
    seqs, blocks = more.pop("seqs", SLOTS), more.pop("blocks", 1000)
    rig = Rig(**{"slots_ahead_max": 0.5, **more})
    rig.gateway()
    rig.prefill(seqs=16, blocks=1000)
    rig.decode(seqs=seqs, blocks=blocks)
    for peer in ("p0|1", "d0|1"):
        rig.beat(peer, Load())
    if stay_s:
        rig.core.tables.estimates.record_residence(stay_s)
    for number in range(seqs):
        runs(rig, f"s{number}")
    assert rig.core.tables.estimates.prefill_seconds(PROMPT) == pytest.approx(0.05)
    rig.sent.clear()
    return rig


def runs(rig: Rig, name: str, **about: Any) -> None:
    rig.submit(name, prompt=16, local_reason="it is short", **about)
    rig.started(name, kv=None)


def asked(rig: Rig, name: str = "r1", attempt: int = 1, **about: Any) -> bool:
    """Whether both workers were given it at once."""
    rig.sent.clear()
    rig.submit(name, attempt, prompt=PROMPT, **about)
    given = [m.request_id for m in rig.take(Prefill, "p0|1")]
    given += [m.request_id for m in rig.take(Decode, "d0|1")]
    assert given in ([], [name, name])
    return bool(given)


def computed(rig: Rig, name: str = "r1", attempt: int = 1) -> None:
    """In the time that was expected."""
    rig.now += 0.05
    rig.receive("p0|1", PrefillEnded(request_id=name, attempt=attempt, elapsed_ms=50.0))


def waits_for(rig: Rig, name: str = "r1") -> str:
    lacked = rig.known(name).waits_for
    assert lacked is not None
    return lacked.value


def test_a_prompt_begins_before_a_slot_is_free_if_one_will_be() -> None:
    rig = fleet()
    assert asked(rig)
    placement = rig.known().placement
    assert placement is not None
    assert placement.ahead
    assert placement.sentence.startswith(
        "d0 has no free slot; of its 4 streams 2.0 should end in the 50 ms that the prompt takes"
    )
    assert rig.core.tables.counts.placed_ahead == 1
    assert len(rig.row("d0|1").held) == SLOTS + 1


def test_no_more_of_them_than_streams_end_in_time() -> None:
    rig = fleet()
    assert [asked(rig, f"r{n}") for n in range(4)] == [True, True, False, False]
    assert waits_for(rig, "r2") == "a free decode slot"
    rig.now += 0.1  # the stay of all
    rig.ended("s0")
    assert rig.take(Decode) == [], "one of three ends in that time, and two began ahead"
    rig.ended("s1")
    assert [m.request_id for m in rig.take(Decode)] == ["r2"], "one of two ends"
    rig.ended("s2")
    assert rig.take(Decode) == [], "half of a stream is none"
    rig.ended("s3")
    assert [m.request_id for m in rig.take(Decode)] == ["r3"], "a slot is free"
    assert rig.core.tables.counts.placed_ahead == 3


def test_more_may_begin_as_more_streams_run_though_none_has_ended() -> None:
    rig = fleet(seqs=1, slots_ahead_max=1.0, stay_s=0.01)
    rig.ended("s0")
    rig.submit("s1", prompt=16, local_reason="it is short")
    assert not asked(rig), "nobody decodes yet"
    rig.started("s1", kv=None)
    rig.tick(0.2, alive=("p0|1", "d0|1"))
    assert rig.state() == "placed"


@pytest.mark.parametrize(
    "more",
    [
        {"slots_ahead_max": 0.0},
        {"slots_ahead_max": 0.2},
        {"stay_s": 0.0},
        {"stay_s": 10.0},
        {"max_active": SLOTS},
        {"remote_prefill": "never"},
        {"blocks": 4 * 2 + 25},
    ],
    ids=str,
)
def test_it_waits(more: dict[str, Any]) -> None:
    """Where that is turned off, a share of the slots is less than one, no stay was measured or it
    is long, an operator limits what runs, D would have to compute it, or KV lacks too."""
    rig = fleet(**more)
    assert not asked(rig)
    assert waits_for(rig) == "a free decode slot"
    assert rig.core.tables.counts.placed_ahead == 0


def test_the_lowest_class_and_further_attempts_wait() -> None:
    rig = fleet()
    assert not asked(rig, "low", priority=LOWEST)
    rig.cancel("low")
    assert not asked(rig, "again", 2)
    rig.cancel("again", 2)
    assert asked(rig)


def test_none_begins_while_computed_prompts_wait_for_their_first_token() -> None:
    config = AdmissionConfig(decode_queue_overdue_ms=1_000.0, decode_queue_per_worker=9)
    rig = fleet(admission=config)
    assert asked(rig)
    computed(rig)
    rig.tick(1.4, alive=("p0|1", "d0|1"))
    assert not asked(rig, "r2")
    rig.started()
    rig.tick(0.2, alive=("p0|1", "d0|1"))
    assert rig.state("r2") == "placed"


def test_a_prompt_that_is_cached_begins_later() -> None:
    """It takes less time, in which fewer streams end."""
    hashes = prefix_hashes(pack_ids(list(range(PROMPT))), BLOCK, None)
    rig = fleet(stay_s=0.15)
    assert asked(rig, "r0", prefix_hashes=hashes)
    rig.ended("r0")
    assert not asked(rig, "r1", prefix_hashes=hashes), "its prefill worker has most of it now"
    rig.cancel("r1")
    assert asked(rig, "r2")


def suspected(rig: Rig, name: str) -> bytes:
    """The digest of a prompt with which two decode workers died after its first token."""
    digest = name.encode() * 16
    for attempt in (1, 2):
        peer = rig.decode(f"{name}{attempt}", seqs=2, blocks=1000)
        rig.submit(name, attempt, prompt=PROMPT, prompt_digest=digest)
        assert rig.known(name, attempt).decode == peer
        computed(rig, name, attempt)
        rig.started(name, attempt, peer=peer)
        rig.gone(peer)
    assert rig.core.tables.quarantine.is_suspect(digest)
    return digest


def test_a_suspected_prompt_does_not_begin_ahead() -> None:
    rig = fleet(liveness=LivenessConfig(trial_wait_ms=60_000.0))
    one, other = suspected(rig, "u"), suspected(rig, "v")
    rig.beat(rig.decode("d1", seqs=1, blocks=1000), Load())
    runs(rig, "t0")
    assert not asked(rig, "one", prompt_digest=one)
    (aside,) = rig.core.tables.quarantine.trials.rows
    assert not asked(rig, "other", prompt_digest=other), "the other worker is not set aside"
    rig.cancel("other")
    assert aside == "d1|1"


def test_the_wait_for_a_slot_is_not_learned_as_a_part_of_the_handoff() -> None:
    rig = fleet()
    estimates = rig.core.tables.estimates
    before = estimates.handoff_latency_s(), estimates.handoffs
    assert asked(rig)
    computed(rig)
    rig.now += 0.7
    rig.started()
    assert (estimates.handoff_latency_s(), estimates.handoffs) == before
    rig.ended("s0")
    rig.ended("s1")
    assert asked(rig, "r2")
    computed(rig, "r2")
    rig.now += 0.7
    rig.started("r2")
    assert estimates.handoffs == before[1] + 1
    assert estimates.handoff_latency_s() == pytest.approx(0.7)


def test_what_a_lost_worker_had_ahead_may_be_tried_again_too() -> None:
    rig = fleet()
    rig.tick(0.2, alive=("p0|1", "d0|1"))
    assert rig.core.tables.admission.largest_worker_slots == SLOTS + 2


def test_a_request_begins_for_no_worker_without_its_adapter() -> None:
    rig = fleet()
    had = AdapterStatus(id="sql@1", path="/srv/sql", resident=True)
    rig.receive("p0|1", Beat(load=Load(), adapters=(had,)))
    rig.decode("d1", seqs=2, blocks=1000)
    rig.receive("d1|1", Beat(load=Load(), adapters=(had,)))
    for number in range(2):
        rig.submit(f"t{number}", prompt=16, adapter="sql@1", local_reason="it is short")
        rig.started(f"t{number}", peer="d1|1", kv=None)
    rig.sent.clear()
    rig.submit("r1", prompt=PROMPT, adapter="sql@1")
    assert [order.request_id for order in rig.take(Decode, "d1|1")] == ["r1"]
    rig.submit("r2", prompt=PROMPT, adapter="sql@1")
    assert rig.take(Decode) == [], "d1 has none left, and d0 does not have the adapter"
    assert asked(rig, "r3") is False, "it is behind in the queue"


def test_it_is_promised_its_budget_like_any_other() -> None:
    rig = fleet(kv_budgets=(30 * 1024,) * 3)
    assert asked(rig, resumable=True, out=400)
    assert rig.known().request.kv_tokens == 30 * BLOCK


def test_the_wait_for_its_slot_is_a_phase_of_its_own() -> None:
    """D asks for the KV once there is a slot, 90 ms after the request came; P was done after 50."""
    rig = fleet()
    assert asked(rig)
    computed(rig)
    rig.started(kv=msgspec.structs.replace(MOVED, wait_ms=1.0, transfer_ms=4.0), kv_ms=95.0)
    rig.ended()
    legs = Leg("queue", 1, 0.0), Leg("placed", 1, 100.0), Leg("decode", 1, 80.0)
    told = RequestSummary(request_id="r1", attempt=1, outcome="ended", legs=legs)
    rig.receive("g0|1", told)
    (made,) = [action.record for action in rig.tick(0.2) if isinstance(action, Recorded)]
    assert [(phase.phase, phase.worker, phase.ms) for phase in made.phases] == [
        ("queue", "", 0.0),
        ("prefill", "p0", 50.0),
        ("slot", "d0", 40.0),
        ("transfer", "p0>d0", 5.0),
        ("first_token", "d0", 5.0),
        ("decode", "d0", 80.0),
    ]

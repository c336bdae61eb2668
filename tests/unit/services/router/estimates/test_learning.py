"""Reports through the core teach `Estimates`, and only those that should."""

import pytest

from common.messages import Ended, KvReport, PrefillEnded, Refused
from services.router.admin.verb import View
from services.router.admin.verbs import status
from services.router.estimates.estimates import Estimates
from tests.unit.services.router.rig import Rig, standard


def estimates(rig: Rig) -> Estimates:
    return rig.core.tables.estimates


def finish(rig: Rig, request_id: str, tokens: int, milliseconds: float) -> None:
    end = Ended(
        request_id=request_id,
        attempt=1,
        finish_reason="stop",
        completion_tokens=tokens,
        decode_ms=milliseconds,
    )
    rig.receive("d0|1", end)


def test_a_remote_request_teaches_all_its_phases(rig: Rig) -> None:
    rig.submit(prompt=400, out=100)
    rig.now += 0.1
    rig.receive(
        "p0|1", PrefillEnded(request_id="r1", attempt=1, elapsed_ms=100.0, cached_tokens=200)
    )
    rig.now += 0.02
    moved = KvReport(blocks=4, complete=True, messages=2, payload_bytes=4_000_000, transfer_ms=1.0)
    rig.started(kv=moved)
    rig.now += 0.4
    finish(rig, "r1", 21, 400.0)
    learned = estimates(rig)
    assert learned.prefill_seconds(200, "p0") == pytest.approx(0.1)
    assert learned.handoff_latency_s() == pytest.approx(0.02)
    assert learned.bandwidth.bytes_per_s("p0", "d0") == pytest.approx(2e9)
    assert learned.transfer_seconds(2_000_000_000, "p0", "d0") == pytest.approx(1.0)
    assert learned.step_seconds(1) == pytest.approx(0.02)
    assert learned.decode_residence_s(0.0) == pytest.approx(0.52)
    assert learned.local_prefill.count == 0


def test_what_a_thin_wire_needs_is_learned_with_the_wire_and_foretold_by_size() -> None:
    """400 tokens take P 0.1 s and a wire of 25,600 bytes a second one: it ends 0.9 s after P, and
    20 ms come on top whatever the size."""
    rig = standard(ttft_slo_ms=400.0)
    for number in range(10):
        rig.submit(f"r{number}", prompt=400)
        rig.now += 0.1
        rig.receive("p0|1", PrefillEnded(request_id=f"r{number}", attempt=1, elapsed_ms=100.0))
        rig.now += 0.92
        moved = KvReport(complete=True, messages=2, payload_bytes=25_600, transfer_ms=500.0)
        rig.started(f"r{number}", kv=moved)
        rig.ended(f"r{number}")
    assert estimates(rig).handoff_latency_s() == pytest.approx(0.02)
    rig.sent.clear()
    rig.submit("short", prompt=100)
    rig.submit("long", prompt=200)
    (refused,) = rig.take(Refused)
    assert refused.request_id == "long"
    assert "50 to compute the prompt, 470 to hand it over" in refused.message


def test_a_wire_that_nobody_measured_is_not_foretold(rig: Rig) -> None:
    """A handoff of one message tells nothing of the wire, and a guess would refuse for nothing."""
    rig.submit(prompt=400)
    rig.now += 0.1
    rig.receive("p0|1", PrefillEnded(request_id="r1", attempt=1, elapsed_ms=100.0))
    rig.now += 0.02
    rig.started(kv=KvReport(complete=True, messages=1, payload_bytes=10_000_000_000))
    assert estimates(rig).handoff_latency_s() == pytest.approx(0.02)
    assert estimates(rig).exposed_transfer_s(1e9, 0.0) == 0.0


def test_a_local_prefill_teaches_the_curve_of_d() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode()
    rig.submit(prompt=400)
    rig.started(kv=None)
    assert estimates(rig).local_prefill_seconds(400) == pytest.approx(0.005)
    assert estimates(rig).prefill.count == 0


def test_before_d_computed_anything_the_curve_of_p_answers_for_it(rig: Rig) -> None:
    rig.submit(prompt=400)
    rig.now += 1.0
    rig.prefilled()
    assert estimates(rig).local_prefill_seconds(400) == estimates(rig).prefill_seconds(400)


def test_the_step_is_learned_by_the_batch_that_was_there(rig: Rig) -> None:
    for i in range(4):
        rig.submit(f"r{i}", prompt=8, out=8)
        rig.started(f"r{i}", kv=None)
    for i in range(4):
        finish(rig, f"r{i}", 11, 100.0 * (4 - i))
    assert len(rig.row("d0|1").decoding) == 0
    known = estimates(rig).summary().decode_step_ms
    assert set(known) == {"2"}


def test_the_output_length_is_learned_from_what_ended_well_only(rig: Rig) -> None:
    for i in range(10):
        rig.submit(f"r{i}", out=100)
        rig.ended(f"r{i}", error="cancelled")
    assert estimates(rig).output_tokens("", 1, 100) == 100
    for i in range(10, 20):
        rig.submit(f"r{i}", out=100)
        rig.ended(f"r{i}")
    assert estimates(rig).output_tokens("", 1, 100) == 8


def test_a_failed_prefill_teaches_nothing(rig: Rig) -> None:
    rig.submit()
    rig.prefilled(error="engine_failed")
    assert estimates(rig).prefill.count == 0


def test_status_shows_what_was_learned(rig: Rig) -> None:
    rig.submit(prompt=400)
    rig.now += 0.1
    rig.prefilled()
    view = View(rig.core.shared, rig.now, {})
    shown = status.run(view, {}).estimates
    assert set(shown.prefill_tokens_per_s) == {"256"}
    assert shown.decode_step_ms == {}

"""The governor on what the core has learned: remote until measured, then by the curves."""

from common.messages import DecodeStarted, KvReport, Load, PrefillEnded
from services.router.estimates.rates import SAMPLES_MIN
from services.router.placement.memory import PROBE_EVERY
from tests.unit.services.router.rig import Rig

PROMPT = 400


def auto() -> Rig:
    """One of each, idle."""
    rig = Rig(remote_prefill="auto")
    rig.gateway()
    rig.prefill()
    rig.decode()
    for peer in ("p0|1", "d0|1"):
        rig.beat(peer, Load())
    return rig


def run(rig: Rig, name: str, *, prefill_ms: float, tail_ms: float) -> str:
    """One request from start to end. Returns what the placement said."""
    rig.submit(name, prompt=PROMPT)
    placement = rig.known(name).placement
    assert placement is not None
    rig.now += prefill_ms / 1000
    if placement.prefill is not None:
        rig.receive("p0|1", PrefillEnded(request_id=name, attempt=1, elapsed_ms=prefill_ms))
        rig.now += tail_ms / 1000
    elapsed = prefill_ms + tail_ms if placement.prefill else prefill_ms
    report = KvReport(blocks=25, complete=True, messages=1, payload_bytes=25 * 1024)
    kv = report if placement.prefill else None
    rig.receive("d0|1", DecodeStarted(request_id=name, attempt=1, elapsed_ms=elapsed, kv=kv))
    rig.now += 0.07
    rig.ended(name)
    return placement.sentence


def test_a_handoff_that_costs_more_than_it_saves_is_given_up_once_measured() -> None:
    rig = auto()
    told = [run(rig, f"r{i}", prefill_ms=40, tail_ms=60) for i in range(SAMPLES_MIN + 1)]
    assert all("local prefill" not in sentence for sentence in told[:-1])
    assert "local prefill pays: remote 100 ms, local 40 ms and 0 ms" in told[-1]


def test_a_busy_decode_worker_makes_the_handoff_pay() -> None:
    rig = auto()
    for i in range(SAMPLES_MIN):
        run(rig, f"r{i}", prefill_ms=40, tail_ms=60)
    for i in range(4):
        rig.submit(f"other{i}", prompt=10, out=50)
    told = run(rig, "last", prefill_ms=40, tail_ms=60)
    assert "remote prefill pays: remote 100 ms, local 44 ms and" in told
    assert "4 running streams would lose" in told


def test_local_is_doubted_now_and_then() -> None:
    rig = auto()
    for i in range(SAMPLES_MIN):
        run(rig, f"r{i}", prefill_ms=40, tail_ms=60)
    told = [run(rig, f"s{i}", prefill_ms=40, tail_ms=60) for i in range(2 * PROBE_EVERY + 2)]
    probes = [i for i, sentence in enumerate(told) if "to measure it again" in sentence]
    assert probes == [PROBE_EVERY, 2 * PROBE_EVERY + 1]
    assert all("local prefill pays" in told[i] for i in range(len(told)) if i not in probes)

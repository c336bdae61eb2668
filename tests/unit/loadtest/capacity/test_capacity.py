"""The capacity model against sums that can be done by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from common.blocks import Kept, KvGroup
from common.errors import ConfigError
from common.messages import Decode, Ended, Message
from loadtest.capacity.__main__ import main
from loadtest.capacity.fleet import Fleet, Scenario, run
from loadtest.capacity.overload import (
    DECODE_BOUND,
    PREFILL_BOUND,
    OverloadFleet,
    capacity_rps,
    overload,
)
from loadtest.capacity.profile import Profile, load
from loadtest.capacity.report import Report, Slo, weighted
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workers import DecodeModel, FleetPort, Request
from loadtest.capacity.workload import Arrival, RequestShape, poisson
from services.router.settings import Settings
from tests.unit.loadtest.capacity.models import PROFILE


def scenario(arrivals: list[Arrival], **more: object) -> Scenario:
    parts: dict[str, object] = {"profile": PROFILE, "prefills": 1, "decodes": 1, "seconds": 60.0}
    return Scenario(arrivals=arrivals, **{**parts, **more})  # type: ignore[arg-type]


def test_one_request_takes_what_its_parts_take() -> None:
    """Prefill 0.1 s, during which its KV was sent; no last chunk beyond; then steps of 11 ms."""
    fleet = Fleet(scenario([Arrival(1.0, 1_000, 20, 40)]))
    report = fleet.run()
    (sample,) = fleet.samples
    assert sample.first is not None
    assert sample.done is not None
    last_chunk = 1_000 * 100_000 / 1e9
    assert sample.first - 1.0 == pytest.approx(0.1 + last_chunk + 0.011)
    assert sample.done - sample.first == pytest.approx(19 * 0.011)
    assert report.itl_ms.p99 == 11.0
    assert (report.local_prefills, report.ended) == (0, 1)


def test_a_slow_link_is_what_kv_waits_for() -> None:
    slow = Profile(
        prefill_tokens_per_s=1e6, prefill_ms=0.0, bandwidth_bytes_per_s=1e8, control_ms=0.0,
        kv_bytes_per_token=100_000, decode_step_ms=10.0, decode_step_ms_per_seq=0.0,
    )  # fmt: skip
    fleet = Fleet(scenario([Arrival(0.0, 1_000, 1, 1), Arrival(0.0, 1_000, 1, 1)], profile=slow))
    fleet.run()
    first, second = (s.first for s in fleet.samples)
    assert first == pytest.approx(1.0 + 0.001 + 0.010, abs=0.02)
    assert second == pytest.approx(2.0 + 0.010, abs=0.02)


def test_a_window_is_moved_and_held_once_however_long_the_prompt() -> None:
    """Of a window of 32 tokens 3 blocks of 16 are sent, and as many are held."""
    windowed = msgspec.structs.replace(PROFILE, kv_groups=(KvGroup(16, Kept.WINDOW, 32),))
    assert PROFILE.transfer_seconds(8_000, 4_000) == pytest.approx(4_000 * 100_000 / 1e9)
    assert windowed.transfer_seconds(8_000, 4_000) == pytest.approx(2 * 16 * 100_000 / 1e9)
    slots = PROFILE.max_num_seqs
    few = msgspec.structs.replace(PROFILE, kv_blocks=600, block_tokens=16)
    assert few.decode_capacity(1, 8_000, 100, 1.0) < slots / (100 * few.step_seconds(slots))
    many = msgspec.structs.replace(few, kv_groups=windowed.kv_groups)
    batch = min(slots, 200)
    assert many.decode_capacity(1, 8_000, 100, 1.0) == pytest.approx(
        batch / (100 * many.step_seconds(batch))
    )
    fleet = Fleet(scenario([Arrival(0.0, 8_000, 20, 40)], profile=windowed))
    report = fleet.run()
    assert report.ended == 1


def test_local_prefill_slows_the_streams_that_share_its_steps() -> None:
    long, short = Arrival(0.0, 10, 200, 200), Arrival(0.5, 8_000, 1, 1)
    fleet = Fleet(scenario([long, short], prefills=0))
    report = fleet.run()
    assert report.local_prefills == 2
    assert report.itl_ms.p50 == 11.0
    assert report.itl_ms.p99 == pytest.approx(11.0 + 2_048 / 10.0, abs=1.0)


def test_a_fleet_under_its_capacity_serves_all_and_over_it_is_full() -> None:
    shape = RequestShape(prompt=1_000, output=50)
    can = capacity_rps(PROFILE, 1, 1, shape, 0.95)
    low, high = (
        run(scenario(list(poisson(can * times, 60.0, shape, 3)), slo=Slo(ttft_ms=2_000.0)))
        for times in (0.6, 3.0)
    )
    assert low.attainment > 0.99
    assert low.goodput_rps == pytest.approx(can * 0.6, rel=0.2)
    assert high.prefill_utilization > 0.98
    assert high.attainment < low.attainment


@pytest.mark.parametrize(("bound", "shape"), [("prefill", PREFILL_BOUND), ("decode", DECODE_BOUND)])
def test_a_bound_is_the_phase_that_is_full(bound: str, shape: RequestShape) -> None:
    bench = OverloadFleet(seconds=20.0)
    report = overload(2.0, bound, Settings(max_queue=16), bench)  # type: ignore[arg-type]
    prefill = report.prefill_utilization
    assert (prefill > 0.97) == (bound == "prefill"), prefill
    assert sum(report.refused.values()) > 0
    assert capacity_rps(Profile(), 2, 2, shape, 0.95) * 20.0 < report.requests


def test_an_obedient_client_comes_back_when_it_was_told_to() -> None:
    arrivals = [Arrival(0.0, 1_000, 300, 300) for _ in range(70)]
    settings = Settings(max_queue=2)
    fleet = Fleet(scenario(arrivals, settings=settings, retries=5, decodes=1))
    report = fleet.run()
    again = [s for s in fleet.samples if s.tries > 1]
    assert again
    assert all(wait > 0 for s in again for wait in s.waits_ms)
    assert report.next_try is not None
    assert report.refused_without_wait == 0


def test_a_run_repeats_itself() -> None:
    def trace() -> list[tuple[float | None, float | None, str]]:
        fleet = Fleet(scenario(list(poisson(8.0, 10.0, RequestShape(), 5)), decodes=2))
        fleet.run()
        return [(s.first, s.done, s.refused) for s in fleet.samples]

    assert trace() == trace()


def test_the_cores_of_the_workers_make_the_messages_and_keep_nothing() -> None:
    fleet = Fleet(scenario([Arrival(0.0, 1_000, 20, 40), Arrival(0.5, 1_000, 1, 1)]))
    fleet.run()
    attempt = fleet.core.tables.history.latest("r0")
    assert attempt is not None
    assert attempt.decode_report is not None
    assert attempt.decode_report.kv_ms == pytest.approx(200.0)
    for worker in fleet.workers.values():
        worker.core.check_invariants()
        assert worker.core.active == 0


def test_a_decode_worker_refuses_more_than_it_can_hold() -> None:
    """Its own core is the fence when a router promises more."""
    arrival = Arrival(0.0, 100, 5, 5)
    sent: list[Message] = []
    port = FleetPort(lambda _, message: sent.append(message), *[lambda *_: None] * 3)
    small = msgspec.structs.replace(PROFILE, max_num_seqs=1)
    worker = DecodeModel("d0", small, VirtualTime(), port, Settings())
    for number in (1, 2):
        decode = Decode(f"r{number}", 1, "g0", "1", "ipc://g0")
        worker.dispatch(decode, Request(arrival, b""))
    (ended,) = sent
    assert isinstance(ended, Ended)
    assert (ended.request_id, ended.error) == ("r2", "no_capacity")


def test_simultaneous_events_keep_their_order() -> None:
    time, seen = VirtualTime(), []
    for n in range(3):
        time.at(1.0, lambda n=n: seen.append(n))  # type: ignore[misc]
    time.at(-5.0, lambda: seen.append("past"))
    time.run(until=2.0)
    assert seen == ["past", 0, 1, 2]


def test_quantiles_are_weighted() -> None:
    assert weighted([(1.0, 50.0), (2.0, 45.0), (9.0, 5.0)]).p50 == 1.0
    assert weighted([(1.0, 50.0), (2.0, 45.0), (9.0, 5.0)]).p99 == 9.0
    assert weighted([]).p99 == 0.0


def test_a_bad_profile_names_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.toml"
    path.write_text("prefil_tokens_per_s = 5.0\n")
    with pytest.raises(ConfigError, match="prefil_tokens_per_s"):
        load(path)
    assert main(["--profile", str(path)]) == 2
    assert "decode_step_ms" in capsys.readouterr().err
    assert main(["--profile", str(tmp_path / "none.toml")]) == 2


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert "prefill_tokens_per_s = 20000.0" in text
    assert "--overload 1,2,4" in text


@pytest.mark.parametrize(
    "wrong", [["--decode", "0"], ["--rate", "-1"], ["--overload", "1,x"], ["--grow", "1"]]
)
def test_arguments_out_of_range_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(wrong)
    assert ended.value.code == 2


TRACE = "".join(
    f'{{"timestamp": {300 * i}, "input_length": 900, "output_length": 60}}\n' for i in range(12)
)


def test_a_recorded_trace_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(TRACE + "broken\n")
    flags = ["--trace", str(path), "--speed", "2", "--scale", "0.5"]
    assert main([*flags, "--prefill", "1", "--decode", "1", "--json"]) == 0
    said = capsys.readouterr()
    report = msgspec.json.decode(said.out, type=Report)
    assert (report.requests, report.ended) == (12, 12)
    assert 11 * 0.3 / 2 < report.virtual_seconds < 11 * 0.3 / 2 + 1
    assert report.router_us > 0
    assert f"{path}:13: " in said.err
    assert main(["--trace", str(tmp_path / "none.jsonl")]) == 2

"""A daemon's metrics over its socket, as the health daemon asks for them."""

from __future__ import annotations

from common.telemetry.buckets import Buckets
from services.health.verdicts.host_verdict import HealthLevel
from services.health.verdicts.probes import daemon_probes


def test_a_late_loop_an_old_step_and_few_files_are_judged() -> None:
    page = (
        "baton_event_loop_lag_seconds 3.0\nprocess_open_fds 99.0\nprocess_max_fds 100.0\n"
        "baton_worker_engine_step_age_seconds 70.0\n"
    )
    found = {probe.name: probe.verdict for probe in daemon_probes({("decode", "d0"): page}, [])}
    assert found == {
        "loop_lag:d0": HealthLevel.DEGRADED,
        "fds:d0": HealthLevel.DOWN,
        "step_age:d0": HealthLevel.DOWN,
    }
    (silent,) = daemon_probes({}, [("prefill", "p0")])
    assert silent.verdict is HealthLevel.DEGRADED


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    buckets = Buckets((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        buckets.observe(value)
    assert buckets.cumulative() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert (buckets.count, buckets.total) == (4, 12.0)

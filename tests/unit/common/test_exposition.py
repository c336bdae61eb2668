"""A daemon's metrics over its socket, as the health daemon asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.buckets import Buckets
from common.config import Config, FleetConfig
from common.exposition import SUFFIX, Exposition
from common.lifecycle import Tasks
from services.health.merge import sample
from services.health.probes import daemon_probes
from services.health.scrape import scrape
from services.health.verdict import Verdict


class Seven(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("baton_seven", "Seven", value=7)


async def test_a_scrape_finds_every_socket_and_names_the_silent(tmp_path: Path) -> None:
    config = Config(fleet=FleetConfig(run_dir=str(tmp_path)))
    tasks, exposition = Tasks(), Exposition(config, "decode", "d0", Seven())
    await exposition.start(tasks)
    dead = tmp_path / f"prefill.p0{SUFFIX}"
    dead.touch()
    pages, silent = await scrape(tmp_path)
    assert set(pages) == {("decode", "d0")}
    assert silent == [("prefill", "p0")]
    page = pages["decode", "d0"]
    assert sample(page, "baton_seven") == 7.0
    assert sample(page, "baton_event_loop_lag_seconds") == 0.0
    assert (tmp_path / f"decode.d0{SUFFIX}").stat().st_mode & 0o777 == 0o660
    await exposition.close()
    await tasks.cancel_all()
    dead.unlink()
    assert await scrape(tmp_path) == ({}, [])


def test_a_late_loop_an_old_step_and_few_files_are_judged() -> None:
    page = (
        "baton_event_loop_lag_seconds 3.0\nprocess_open_fds 99.0\nprocess_max_fds 100.0\n"
        "baton_worker_engine_step_age_seconds 70.0\n"
    )
    found = {each.name: each.verdict for each in daemon_probes({("decode", "d0"): page}, [])}
    assert found == {
        "loop_lag:d0": Verdict.DEGRADED,
        "fds:d0": Verdict.DOWN,
        "step_age:d0": Verdict.DOWN,
    }
    (silent,) = daemon_probes({}, [("prefill", "p0")])
    assert silent.verdict is Verdict.DEGRADED


def test_buckets_are_cumulative_and_include_their_bound() -> None:
    buckets = Buckets((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        buckets.observe(value)
    assert buckets.cumulative() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert (buckets.count, buckets.total) == (4, 12.0)

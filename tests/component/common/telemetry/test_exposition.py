"""A daemon's metrics over its socket, as the health daemon asks for them: the tests that start
something."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.config import Config, FleetConfig
from common.process.lifecycle import Tasks
from common.telemetry.exposition import SUFFIX, Exposition
from services.health.metrics.merge import sample
from services.health.metrics.scrape import scrape


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

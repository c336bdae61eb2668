"""One simulated fleet for the tests that do not break it."""

from collections.abc import Iterator

import pytest

from tests.rigs.fleet import Fleet, fleet

SIM = ("--engine", "sim", "--prefill", "2", "--decode", "2")


@pytest.fixture(scope="module")
def sim_fleet() -> Iterator[Fleet]:
    with fleet(*SIM) as running:
        yield running.wait_ready()

"""One simulated fleet for all tests that neither break it nor count what it has done so far."""

from collections.abc import Iterator

import pytest

from tests.rigs.fleet import Fleet, fleet

SIM = ("--engine", "sim", "--prefill", "2", "--decode", "2")


@pytest.fixture(scope="package")
def sim_fleet() -> Iterator[Fleet]:
    with fleet(*SIM) as running:
        yield running.wait_ready()

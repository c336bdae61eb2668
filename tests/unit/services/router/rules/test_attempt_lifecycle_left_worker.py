"""A gateway that hears nothing of a decode worker says so when it submits anew."""

from __future__ import annotations

import pytest

from common.messages import Decode
from tests.unit.services.router.rig import Rig


def again(rig: Rig, left: str, attempt: int = 2) -> str:
    """Where the new attempt is placed."""
    rig.submit("r1", attempt, left=left)
    (order,) = [
        s for s in rig.sent if isinstance(s.message, Decode) and s.message.attempt == attempt
    ]
    return order.peer


@pytest.fixture
def rig() -> Rig:
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.decode("d0")
    rig.decode("d1")
    return rig


@pytest.mark.parametrize("left", ["d0|1", "d1|1"])
def test_it_is_placed_elsewhere(rig: Rig, left: str) -> None:
    assert again(rig, left) != left


def test_it_is_placed_there_again_when_there_is_no_other(rig: Rig) -> None:
    rig.gone("d1|1")
    assert again(rig, "d0|1") == "d0|1"


def test_with_a_beat_missing_too_the_worker_gets_nothing_new(rig: Rig) -> None:
    rig.tick(1.0, alive=("g0|1", "d1|1"))
    before = rig.core.tables.workers["d0|1"].display_state
    again(rig, "d0|1")
    assert (before, rig.core.tables.workers["d0|1"].display_state) == ("ready", "suspect")


def test_a_gateways_word_alone_blames_nobody(rig: Rig) -> None:
    rig.tick(1.0, alive=("g0|1", "d0|1", "d1|1"))
    again(rig, "d0|1")
    assert rig.core.tables.workers["d0|1"].display_state == "ready"


def test_an_unknown_worker_is_ignored(rig: Rig) -> None:
    assert again(rig, "d9|1") in ("d0|1", "d1|1")

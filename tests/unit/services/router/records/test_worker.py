"""The row of a worker: what changes its snapshot is noted, whichever method changes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from common.messages import Load
from services.router.records.states import WorkerEvent
from services.router.records.worker import Worker
from tests.unit.services.router.rig import standard

KEY = ("r1", 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda worker: worker.hold(KEY, 16),
        lambda worker: worker.release(KEY),
        lambda worker: worker.start_prompt(KEY, 16),
        lambda worker: worker.finish_prompt(KEY),
        lambda worker: worker.start_decoding(KEY),
        lambda worker: worker.set_slots(worker.slots - 1),
        lambda worker: worker.set_drained(drained=True),
        lambda worker: worker.set_excluded(excluded=True),
        lambda worker: worker.apply(WorkerEvent.LOST, "", 1.0),
        lambda worker: worker.update_load(Load(running=1), 1.0),
    ],
)
def test_a_change_makes_the_snapshot_stale(change: Callable[[Worker], object]) -> None:
    worker = standard().row("d0|1")
    worker.stale_snapshots.clear()
    change(worker)
    assert list(worker.stale_snapshots) == ["d0|1"]

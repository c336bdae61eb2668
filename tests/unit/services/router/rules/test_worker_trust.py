"""Decode workers that are set aside for a suspected prompt."""

from __future__ import annotations

from common.errors import Code
from common.messages import Decode
from tests.unit.services.router.rig import Rig

TICK_SECONDS = 0.1


def test_a_worker_is_free_again_when_what_it_was_set_aside_for_is_suspected_no_longer() -> None:
    """Else the one decode worker that is left would serve nobody until the prompt has waited too
    long."""
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.decode("d0")
    rig.submit("r1")
    rig.decode("d1")
    rig.gone("d0|1")
    rig.submit("r1", 2)
    rig.submit("r2", body=b"another")
    rig.submit("r1", 3, left="d1|1")
    aside = rig.core.tables.quarantine.trials.rows
    assert [trial.attempt for trial in aside.values()] == [None], "it waits for r2 to end"
    rig.ended("r1", 2, peer="d1|1", error=Code.CANCELLED)
    rig.sent.clear()
    rig.tick(TICK_SECONDS, alive=("g0|1", "d1|1"))
    assert not aside
    assert [s.message.attempt for s in rig.sent if isinstance(s.message, Decode)] == [3]

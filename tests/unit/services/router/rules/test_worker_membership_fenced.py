"""A worker whose name was taken hears so at its next Beat, and ends."""

from __future__ import annotations

from common.messages import Beat, Load, Refused
from services.router.events import Received, Send
from tests.unit.services.router.rig import Rig


def beat(rig: Rig, peer: str) -> list[str]:
    actions = rig.handle(Received(peer, Beat(load=Load())))
    return [a.message.code for a in actions if isinstance(a, Send) and a.peer == peer
            and isinstance(a.message, Refused)]  # fmt: skip


def test_a_replaced_worker_that_lives_on_is_told_to_end(rig: Rig) -> None:
    rig.decode("d0", "2")
    assert beat(rig, "d0|1") == ["worker_lost"]
    assert beat(rig, "d0|2") == []


def test_strangers_and_replaced_gateways_are_told_nothing(rig: Rig) -> None:
    """A gateway may still have streams to finish; a stranger has said no Hello yet."""
    rig.gateway("g0", "2")
    assert beat(rig, "g0|1") == []
    assert beat(rig, "nobody|1") == []
    assert rig.core.tables.counts.dropped["before hello"] == 2

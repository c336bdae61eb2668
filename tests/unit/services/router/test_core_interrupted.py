"""Every interrupted prefix: the sequence of one request is cut after each message by each loss, and
afterwards nothing is held, nobody works for nothing, and the gateway knows."""

from collections.abc import Callable
from itertools import product

import pytest

from common.messages import Abort, Failed, Load
from tests.unit.services.router.rig import Rig, standard

STEPS: dict[str, Callable[[Rig], object]] = {
    "submit": lambda rig: rig.submit(),
    "prefill_ended": lambda rig: rig.prefilled(),
    "decode_started": lambda rig: rig.started(),
    "ended": lambda rig: rig.ended(),
}


def gateway_lost(rig: Rig) -> object:
    """Its connection closes and its grace ends."""
    return rig.gone("g0|1"), rig.tick(2.2, alive=("p0|1", "d0|1"))


LOSSES: dict[str, Callable[[Rig], object]] = {
    "p_gone": lambda rig: rig.gone("p0|1"),
    "d_gone": lambda rig: rig.gone("d0|1"),
    "g_gone": gateway_lost,
    "d_fenced": lambda rig: rig.decode("d0", "2"),
    "p_fenced": lambda rig: rig.prefill("p0", "2"),
    "g_fenced": lambda rig: rig.gateway("g0", "2"),
    "cancel": lambda rig: rig.cancel(),
    "newer": lambda rig: rig.submit("r1", 2),
    "p_d_gone": lambda rig: (rig.gone("p0|1"), rig.gone("d0|1")),
    "g_d_gone": lambda rig: (gateway_lost(rig), rig.gone("d0|1")),
}
DONE = len(STEPS)


def run_prefix(rig: Rig, length: int, *, early: bool) -> None:
    """`early`: decode starts before prefill's report, as messages of two peers may."""
    names = list(STEPS)
    if early:
        names[1], names[2] = names[2], names[1]
    for name in names[:length]:
        STEPS[name](rig)


@pytest.mark.parametrize(
    ("length", "loss", "early"), list(product(range(DONE + 1), LOSSES, (False, True)))
)
def test_after_any_prefix_and_any_loss_all_is_settled(length: int, loss: str, early: bool) -> None:
    rig = standard()
    run_prefix(rig, length, early=early)
    over_before = (length == DONE) and rig.state() == "ended"
    rig.sent.clear()
    LOSSES[loss](rig)
    if 0 < length < DONE:
        told_of_loss(rig, loss)
    aborted_at_d = [a for a in rig.take(Abort, "d0|1") if a.attempt == 1]
    if loss == "g_d_gone" and 0 < length < DONE:
        assert rig.state() == "cancelled"
    elif aborted_at_d:
        assert rig.state() == "aborting"
        assert rig.row("d0|1").held_tokens, "credits are held until D says Ended"
        rig.ended(error="cancelled")
    if loss in ("p_gone", "p_fenced") and 0 < length < DONE:
        assert rig.state() in ("placed", "decoding")
        rig.started(kv=None)
        rig.ended()
        assert rig.state() == "ended"
    if loss == "newer":
        rig.ended("r1", 2)
    assert over_before or length == 0 or rig.state() != "placed"
    assert rig.nothing_held()
    assert not rig.core.tables.attempts
    assert not rig.core.tables.active


def told_of_loss(rig: Rig, loss: str) -> None:
    failed = [(f.request_id, f.attempt) for f in rig.take(Failed)]
    lost_d = loss in ("d_gone", "d_fenced", "p_d_gone")
    assert failed == ([("r1", 1)] if lost_d else [])


@pytest.mark.parametrize(("first", "second"), list(product(STEPS, STEPS)))
def test_every_message_may_come_twice_or_out_of_order(first: str, second: str, rig: Rig) -> None:
    rig.submit()
    for name in (first, second, *STEPS, first, second):
        STEPS[name](rig)
    rig.cancel()
    rig.ended(error="cancelled")
    assert rig.nothing_held()
    assert not rig.core.tables.attempts


@pytest.mark.parametrize("length", range(DONE + 1))
def test_a_restarted_router_is_undisturbed_by_what_it_never_placed(length: int) -> None:
    old = standard()
    run_prefix(old, length, early=False)
    rig = standard()
    for name in list(STEPS)[max(1, length) :]:
        STEPS[name](rig)
    rig.cancel()
    assert not rig.core.tables.attempts
    assert not rig.sent
    rig.beat("d0|1", Load(running=1, kv_used=0.1))
    rig.submit("r2")
    assert rig.state("r2") == "placed"

"""Which core of a worker is in force, and when the other one takes over."""

from __future__ import annotations

from typing import Any

import pytest

from common.engine.port import Batch, Output
from common.messages import (
    Abort,
    Become,
    Decode,
    HandOver,
    Message,
    Prefill,
    RequestBody,
    Role,
    Sampling,
)
from common.net.wire import pack_ids
from common.worker.actions import (
    AbortInEngine,
    Action,
    AddToEngine,
    Dispatched,
    HandOverKept,
    WorkerCore,
)
from common.worker.roles import RoleCores
from services.decode.core import DecodeCore
from services.decode.grant_limit import GrantLimit
from services.prefill.core import PrefillCore
from tests.rigs.messages import decode, kv_done, ticket

NOW = 100.0


def cores(role: Role = Role.DECODE, **more: Any) -> RoleCores:
    made: dict[Role, WorkerCore] = {
        Role.PREFILL: PrefillCore("d0", "inc-d0", 8),
        Role.DECODE: DecodeCore("d0", "inc-d0", GrantLimit(8, 4096, 16)),
    }
    return RoleCores(made, role, NOW, **more)


def dispatched(message: Prefill | Decode) -> Dispatched:
    body = RequestBody(prompt_ids=pack_ids([1, 2, 3]), sampling=Sampling(max_tokens=4))
    return Dispatched(message, body)


def prefill(request_id: str = "r") -> Prefill:
    to = ticket(request_id, 1, prefill="d0", prefill_incarnation="inc-d0")
    return Prefill(request_id=request_id, attempt=1, ticket=to)


def handle(core: RoleCores, event: Any) -> list[Action]:
    actions = core.handle(event, NOW)
    core.check_invariants()
    return actions


def order(core: RoleCores, role: Role, epoch: int = 1) -> bool:
    """Whether it takes the role at once."""
    assert handle(core, Become(role=role, epoch=epoch)) == []
    return core.change(NOW + 1)


def test_one_that_holds_nothing_takes_the_role_at_once() -> None:
    core = cores()
    assert (core.role, core.epoch, core.since) == (Role.DECODE, 0, NOW)
    assert order(core, Role.PREFILL)
    assert (core.role, core.epoch, core.since) == (Role.PREFILL, 1, NOW + 1)
    assert core.configured is Role.DECODE
    assert core.becomes is None
    assert isinstance(handle(core, dispatched(prefill()))[0], AddToEngine)
    assert core.active == 1
    assert core.held_attempts()[0].request_id == "r"


def test_a_stream_ends_in_the_role_in_which_it_began() -> None:
    core = cores()
    handle(core, dispatched(decode()))
    assert not order(core, Role.PREFILL)
    assert core.becomes is Role.PREFILL
    handle(core, Batch(outputs=[Output("r#1", [7])]))
    assert not core.change(NOW)
    assert core.held_attempt("r", 1) is not None
    handle(core, Batch(outputs=[Output("r#1", [8], "stop", 8)]))
    assert core.change(NOW)
    assert not core.change(NOW)
    assert core.epoch == 1


def test_a_prompt_is_handed_over_before_its_worker_decodes() -> None:
    core = cores(Role.PREFILL)
    handle(core, dispatched(prefill()))
    handle(core, Batch(outputs=[Output("r#1", [7], "length")]))
    assert not order(core, Role.DECODE)
    handle(core, Batch(kv_done=[kv_done("r", 1, side="send")]))
    assert core.change(NOW)
    assert isinstance(handle(core, dispatched(decode()))[0], AddToEngine)


def test_its_own_role_takes_an_order_back() -> None:
    core = cores()
    handle(core, dispatched(decode()))
    assert not order(core, Role.PREFILL)
    assert not order(core, Role.DECODE)
    assert core.becomes is None
    handle(core, Batch(outputs=[Output("r#1", [8], "stop", 8)]))
    assert not core.change(NOW)
    assert (core.role, core.epoch) == (Role.DECODE, 0)


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_an_order_of_another_epoch_than_the_next_is_ignored(epoch: int) -> None:
    core = cores()
    assert order(core, Role.PREFILL)
    assert not order(core, Role.DECODE, epoch)
    assert (core.role, core.dropped) == (Role.PREFILL, 1)
    assert order(core, Role.DECODE, 2)
    assert core.epoch == 2


def test_one_that_is_warm_or_has_one_core_keeps_its_role() -> None:
    warm = cores(warm=True)
    alone = RoleCores({Role.DECODE: DecodeCore("d0", "i", GrantLimit(8, 64, 16))}, Role.DECODE, NOW)
    for core in (warm, alone):
        assert not core.can_change
        assert not order(core, Role.PREFILL)
        assert (core.becomes, core.dropped) == (None, 1)
    assert cores().can_change
    assert not order(cores(), Role.POOL), "and nobody becomes a pool"


@pytest.mark.parametrize(
    ("role", "message", "actions"),
    [
        (Role.PREFILL, decode(), []),
        (Role.DECODE, prefill(), [AbortInEngine("r", 1)]),
    ],
)
def test_what_a_router_sent_too_late_is_dropped_and_its_kv_refused(
    role: Role, message: Message, actions: list[Action]
) -> None:
    """A D that waits for this KV is told at once that it will not come."""
    core = cores(role)
    assert isinstance(message, Prefill | Decode)
    assert handle(core, dispatched(message)) == actions
    assert (core.active, core.dropped) == (0, 1)


def test_who_asks_for_a_stream_that_is_kept_no_more_is_told_so() -> None:
    core = cores(Role.PREFILL)
    handed = HandOver(ticket=ticket("r", 2), kept_attempt=1)
    assert handle(core, handed) == [HandOverKept(handed.ticket, 1)]
    assert handle(core, Abort(request_id="r", attempt=1, reason="over")) == [AbortInEngine("r", 1)]


def test_an_inactive_core_that_holds_something_is_noticed() -> None:
    core = cores()
    handle(core, dispatched(decode()))
    core.role = Role.PREFILL
    with pytest.raises(AssertionError, match="decode core is not empty"):
        core.check_invariants()

"""P's end of one handoff: answers every granted slot once, sends what is computed.

Theory of operation: in `words`. A slot is a receive that D has posted; P chooses which message goes
into it: the first one in the plan whose blocks and layers hold KV.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

from common.errors import Code
from common.kv.digest import Expected
from common.kv.handoff.words import (
    SEND_TERMINAL,
    SEND_TRANSITIONS,
    Action,
    Ahead,
    Cancel,
    Computed,
    Ended,
    Expire,
    PeerLost,
    Ready,
    SendData,
    SendEvent,
    SendState,
    SendVoid,
    Stage,
    Staged,
    Tell,
)
from common.kv.messages import KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from common.kv.plan import FP8, Plan, Shape
from common.messages import Ticket


@dataclass(slots=True)
class _Outgoing:
    """`slots`: granted and not answered. `pending`: messages neither staged nor sent, by index.
    `staging`: those that wait for a staging buffer, never more than there are slots."""

    peer: int
    plan: Plan
    pending: list[int]
    granted: int = 0
    slots: deque[int] = field(default_factory=deque)
    staging: set[int] = field(default_factory=set)


def asked(ready: KvReady, shape: Shape) -> Plan:
    """Raises ValueError for what no honest peer asks."""
    return Plan(
        ready.transfer,
        ready.first_block,
        ready.blocks,
        ready.message_blocks,
        shape,
        ready.layer_groups,
        fp8=FP8 in ready.accepts,
    )


class Sender:
    """P's end of one ticket. `blocks`: of the whole prompt."""

    def __init__(self, ticket: Ticket, blocks: int, shape: Shape) -> None:
        self.ticket = ticket
        self.blocks = blocks
        self.state = SendState.OFFERED
        self.computed = 0
        self._ahead = Ahead(0, 0)
        self._shape = shape
        self._out: _Outgoing | None = None

    @property
    def transfer(self) -> int | None:
        """The transfer that is served now."""
        return self._out.plan.transfer if self._out else None

    @property
    def peer(self) -> int | None:
        """Who is being served."""
        return self._out.peer if self._out else None

    @property
    def granted(self) -> int:
        """Slots that D has granted for it."""
        return self._out.granted if self._out else 0

    def handle(self, event: SendEvent) -> list[Action]:  # noqa: C901, PLR0911
        """Raises ValueError on an illegal transition. An ended sender ignores everything."""
        if self.state in SEND_TERMINAL:
            return []
        match event:
            case Computed(blocks):
                self.computed, self._ahead = blocks, Ahead(0, 0)
                return self._stage()
            case Ahead():
                self._ahead = event
                return self._stage()
            case Ready(peer, message):
                return self._begin(peer, message)
            case KvCredit() if self._serves(event.transfer):
                return self._grant(event.granted)
            case Staged(transfer, index) if self._serves(transfer):
                return self._send(index)
            case KvReleased() if self._serves(event.transfer):
                return self._end(SendState.RELEASED, "", "")
            case KvAbort() if self._serves(event.transfer):
                return self._end(SendState.ABORTED, Code.CANCELLED, event.reason)
            case Cancel(reason):
                return self._end(SendState.CANCELLED, Code.CANCELLED, reason)
            case Expire():
                return self._end(
                    SendState.EXPIRED, Code.KV_TRANSFER_FAILED, "lease expired: nobody took the KV"
                )
            case PeerLost(peer) if self._out is not None and self._out.peer == peer:
                self._out = None
                self._become(SendState.OFFERED)
        return []

    def _serves(self, transfer: int) -> bool:
        return self._out is not None and self._out.plan.transfer == transfer

    def _begin(self, peer: int, ready: KvReady) -> list[Action]:
        """A second Ready is D's retry: the older transfer is answered with voids."""
        actions = self._void_rest()
        plan = asked(ready, self._shape)
        if plan.end > self.blocks:
            raise ValueError(f"blocks up to {plan.end} of a prompt of {self.blocks}")
        self._out = _Outgoing(peer, plan, list(range(plan.messages)))
        self._become(SendState.SENDING)
        if plan.blocks == 0:
            return actions + self._end(SendState.RELEASED, "", "")
        return actions + self._grant(ready.granted)

    def _grant(self, granted: int) -> list[Action]:
        out = self._out
        assert out is not None
        granted = min(granted, out.plan.messages)
        out.slots.extend(range(out.granted, granted))
        out.granted = max(out.granted, granted)
        return self._stage()

    def _stage(self) -> list[Action]:
        """Asks for staging of messages that hold KV, in the plan's order, as slots allow."""
        out = self._out
        if out is None:
            return []
        room = len(out.slots) - len(out.staging)
        reach = max(self.computed, self._ahead.blocks)
        chosen: list[int] = []
        for at, index in enumerate(out.pending):
            message = out.plan.message(index)
            if len(chosen) >= room or message.end_block > reach:
                break
            if self._holds(message):
                chosen.append(at)
        indices = [out.pending[at] for at in chosen]
        for at in reversed(chosen):
            del out.pending[at]
        out.staging.update(indices)
        return [Stage(out.plan.transfer, index) for index in indices]

    def _holds(self, message: Expected) -> bool:
        if message.end_block <= self.computed:
            return True
        ahead = self._ahead
        return message.end_block <= ahead.blocks and message.end_layer <= ahead.layers

    def _send(self, index: int) -> list[Action]:
        out = self._out
        if out is None or index not in out.staging:
            return []
        out.staging.remove(index)
        if not self._holds(out.plan.message(index)):
            bisect.insort(out.pending, index)
            return []
        return [SendData(out.peer, out.plan, index, out.slots.popleft())]

    def _void_rest(self) -> list[Action]:
        out, self._out = self._out, None
        if out is None:
            return []
        return [SendVoid(out.peer, out.plan.transfer, slot) for slot in out.slots]

    def _end(self, state: SendState, error: str, message: str) -> list[Action]:
        out = self._out
        actions = self._void_rest()
        if out is not None and state in (SendState.CANCELLED, SendState.EXPIRED):
            refusal = KvRefused(transfer=out.plan.transfer, code=error, message=message)
            actions.insert(0, Tell(out.peer, refusal))
        self._become(state)
        return [*actions, Ended(error, message)]

    def _become(self, state: SendState) -> None:
        if state not in SEND_TRANSITIONS[self.state]:
            raise ValueError(f"sender cannot go from {self.state} to {state}")
        self.state = state

    def check_invariants(self) -> None:
        out = self._out
        if (self.state is SendState.SENDING) != (out is not None):
            raise AssertionError(f"{self.state} with transfer {self.transfer}")
        if out is None:
            return
        unsent = len(out.pending) + len(out.staging)
        answered = out.granted - len(out.slots)
        if len(out.staging) > len(out.slots) or answered + unsent != out.plan.messages:
            raise AssertionError(f"impossible counters: {out}")

"""P's end of one handoff: answers every granted slot once, with what is computed.

Theory of operation: as in `protocol.py`. P chooses which message goes into a slot: the first one of
the plan whose blocks and layers hold KV. Nothing here depends on the time, so `handle` takes no
`now`; the ticket table tells the sender that its lease has run out.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

from common.errors import Code
from common.kv.checksum.header import ExpectedMessage
from common.kv.handoff.protocol import (
    SEND_TERMINAL,
    SEND_TRANSITIONS,
    Action,
    Cancel,
    Computed,
    Ended,
    Expire,
    LayersComputed,
    PeerLost,
    Ready,
    SendControl,
    SendData,
    SendEvent,
    SendState,
    SendVoid,
    Stage,
    Staged,
)
from common.kv.messages import KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from common.kv.plan import FP8, KvShape, TransferPlan
from common.messages import Ticket
from common.transitions import checked


@dataclass(slots=True)
class _ActiveTransfer:
    """The transfer that is being served."""

    peer: int
    plan: TransferPlan
    pending: list[int]
    """Indices of messages that are neither staged nor sent, ascending."""
    granted: int = 0
    slots: deque[int] = field(default_factory=deque)
    """Granted and not answered."""
    staging: set[int] = field(default_factory=set)
    """Indices of messages that wait for a staging buffer, never more than there are slots."""


def plan_of(ready: KvReady, shape: KvShape) -> TransferPlan:
    """The transfer that D asks for. Raises ValueError for what no correct D asks."""
    return TransferPlan(
        ready.transfer,
        ready.first_block,
        ready.blocks,
        ready.message_blocks,
        shape if FP8 in ready.accepts and not ready.direct else shape.uncompressed(),
        ready.layer_groups,
        ready.direct,
    )


class Sender:
    """P's end of one ticket."""

    def __init__(self, ticket: Ticket, blocks: int, shape: KvShape) -> None:
        """`blocks`: of the whole prompt."""
        self.ticket = ticket
        self.blocks = blocks
        self.state = SendState.OFFERED
        #: The first blocks of the prompt that hold KV, all layers.
        self.computed = 0
        self._layers_computed = LayersComputed(0, 0)
        self.shape = shape
        self._active: _ActiveTransfer | None = None

    @property
    def transfer(self) -> int | None:
        """The transfer that is being served."""
        return self._active.plan.transfer if self._active else None

    @property
    def peer(self) -> int | None:
        """The connection to the D that is being served."""
        return self._active.peer if self._active else None

    @property
    def granted(self) -> int:
        """Slots that D has granted for the transfer that is being served."""
        return self._active.granted if self._active else 0

    def handle(self, event: SendEvent) -> list[Action]:  # noqa: C901, PLR0911
        """Raises IllegalTransitionError on a defect. An ended sender ignores everything."""
        if self.state in SEND_TERMINAL:
            return []
        match event:
            case Computed(blocks):
                self.computed, self._layers_computed = blocks, LayersComputed(0, 0)
                return self._stage()
            case LayersComputed():
                self._layers_computed = event
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
            case PeerLost(peer) if self._active is not None and self._active.peer == peer:
                self._active = None
                self._become(SendState.OFFERED)
        return []

    def _serves(self, transfer: int) -> bool:
        return self._active is not None and self._active.plan.transfer == transfer

    def _begin(self, peer: int, ready: KvReady) -> list[Action]:
        """A second Ready is D's retry: the older transfer is answered with voids."""
        actions = self._void_open_slots()
        plan = plan_of(ready, self.shape)
        if plan.end > self.blocks:
            raise ValueError(f"blocks up to {plan.end} of a prompt of {self.blocks}")
        self._active = _ActiveTransfer(peer, plan, list(range(plan.messages)))
        self._become(SendState.SENDING)
        if plan.blocks == 0:
            return actions + self._end(SendState.RELEASED, "", "")
        return actions + self._grant(ready.granted)

    def _grant(self, granted: int) -> list[Action]:
        active = self._active
        assert active is not None
        granted = min(granted, active.plan.messages)
        active.slots.extend(range(active.granted, granted))
        active.granted = max(active.granted, granted)
        return self._stage()

    def _stage(self) -> list[Action]:
        """Asks for staging of messages that hold KV, in the plan's order, as slots allow."""
        active = self._active
        if active is None:
            return []
        room = len(active.slots) - len(active.staging)
        reach = max(self.computed, self._layers_computed.blocks)
        chosen: list[int] = []
        for at, index in enumerate(active.pending):
            message = active.plan.message(index)
            if len(chosen) >= room or message.end_block > reach:
                break
            if self._holds_kv(message):
                chosen.append(at)
        indices = [active.pending[at] for at in chosen]
        for at in reversed(chosen):
            del active.pending[at]
        active.staging.update(indices)
        return [Stage(active.plan.transfer, index, active.plan.direct) for index in indices]

    def _holds_kv(self, message: ExpectedMessage) -> bool:
        if message.end_block <= self.computed:
            return True
        layered = self._layers_computed
        return message.end_block <= layered.blocks and message.end_layer <= layered.layers

    def _send(self, index: int) -> list[Action]:
        active = self._active
        if active is None or index not in active.staging:
            return []
        active.staging.remove(index)
        if not self._holds_kv(active.plan.message(index)):
            bisect.insort(active.pending, index)
            return []
        return [SendData(active.peer, active.plan, index, active.slots.popleft())]

    def _void_open_slots(self) -> list[Action]:
        active, self._active = self._active, None
        if active is None:
            return []
        return [SendVoid(active.peer, active.plan.transfer, slot) for slot in active.slots]

    def _end(self, state: SendState, error: str, message: str) -> list[Action]:
        active = self._active
        actions = self._void_open_slots()
        if active is not None and state in (SendState.CANCELLED, SendState.EXPIRED):
            refusal = KvRefused(transfer=active.plan.transfer, code=error, message=message)
            actions.insert(0, SendControl(active.peer, refusal))
        self._become(state)
        return [*actions, Ended(error, message)]

    def _become(self, state: SendState) -> None:
        self.state = checked("sender", SEND_TRANSITIONS, self.state, state)

    def check_invariants(self) -> None:
        active = self._active
        if (self.state is SendState.SENDING) != (active is not None):
            raise AssertionError(f"{self.state} with transfer {self.transfer}")
        if active is None:
            return
        unsent = len(active.pending) + len(active.staging)
        answered = active.granted - len(active.slots)
        if len(active.staging) > len(active.slots) or answered + unsent != active.plan.messages:
            raise AssertionError(f"impossible counters: {active}")

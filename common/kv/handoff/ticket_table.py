"""P's table of tickets: all that were offered here, the D peers that ask for them, and what remains
of both.

Theory of operation: pure, as the senders that it holds. A `KvReady` finds its ticket by the secret.
One that comes before its ticket is kept, because P's queue may be long; early ones are bounded in
number, and each is kept as long as its D waits. An attempt has one ticket here, the first: after a
router's restart P and D may have been given different ones, and a D with another ticket is refused
at once. A ticket serves only the D that it names, in the incarnation that it names. The lease runs
from the offer; losing D's connection shortens it to a grace in which D may come back, and a D that
does has the whole lease again. A transfer that has ended leaves a tombstone with the number of
slots already answered, so that a late credit still gets its voids.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from common.errors import Code
from common.identity import AttemptKey, attempt_of_part
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.lease import Lease, LeaseTable, Tombstones
from common.kv.handoff.protocol import (
    SEND_TERMINAL,
    Action,
    Cancel,
    Ended,
    Expire,
    ForSender,
    FromPeer,
    HandOver,
    Offer,
    PeerLost,
    Ready,
    Release,
    SendControl,
    SendEvent,
    SendVoid,
    Tick,
    TicketEvent,
)
from common.kv.handoff.sender import Sender, plan_of
from common.kv.messages import ConnectedPeer, KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from common.kv.plan import KvShape
from common.messages import Ticket

LEASES_MAX = 4096
EARLY_READY_MAX = 1024
TOMBSTONES_MAX = 8192
GRACE_S = 1.0
PATIENCE_MS_MAX = 600_000.0
OTHER_TICKET = "this attempt's KV is here under another ticket"
NO_CANONICAL_FORM = "this engine's KV has no canonical form"


def why_no_form(ticket: Ticket) -> str:
    """Why KV cannot travel by this canonical ticket, on a worker that has no form for it."""
    if not ticket.element:
        return NO_CANONICAL_FORM + (f" in {ticket.parts} parts" if ticket.parts > 1 else "")
    return (
        f"this worker does not convert KV to {ticket.element}: that needs [kv] compression, "
        "exact = false, and a canonical form of its KV"
    )


@dataclass(slots=True)
class _EarlyReady:
    """A `KvReady` whose ticket has not been offered yet."""

    peer: ConnectedPeer
    message: KvReady
    """With all slots granted so far, by later credits too."""
    expires: float


@dataclass(frozen=True, slots=True)
class TicketAction:
    """An action and the ticket that it belongs to; `key` is None where there is no ticket."""

    key: AttemptKey | None
    action: Action


class TicketTable:
    """All senders of one P, by attempt."""

    def __init__(
        self,
        shape_of: Callable[[Ticket], KvShape | None],
        buffer_bytes: int,
        lease_ms: float,
        counters: HandoffCounters,
        *,
        card_buffer_bytes: int = 0,
    ) -> None:
        """`shape_of`: of the KV that travels by a ticket; None: there is no such form of it.
        `buffer_bytes`: the largest payload that one staging buffer holds; `card_buffer_bytes`: that
        one on a card does, 0 if there is none. `lease_ms`: the longest lease granted. `counters`:
        count what was refused, expired or stale."""
        self._shape_of = shape_of
        self._buffer_bytes = {False: buffer_bytes, True: card_buffer_bytes}
        self._lease_ms = lease_ms
        self._counters = counters
        self._leases: LeaseTable[AttemptKey] = LeaseTable(LEASES_MAX)
        self._senders: dict[AttemptKey, Sender] = {}
        self._by_secret: dict[bytes, AttemptKey] = {}
        self._by_transfer: dict[int, AttemptKey] = {}
        self._early: dict[bytes, _EarlyReady] = {}
        self._ended: Tombstones[AttemptKey, str] = Tombstones(TOMBSTONES_MAX)
        self._answered: Tombstones[int, int] = Tombstones(TOMBSTONES_MAX)

    def handle(self, event: TicketEvent, now: float) -> list[TicketAction]:
        """Raises IllegalTransitionError on a defect."""
        match event:
            case Offer(ticket, blocks):
                return self._offer(ticket, blocks, now)
            case HandOver():
                return self._hand_over(event, now)
            case Release(key, reason):
                return self._release(key, reason)
            case ForSender(key, sender_event):
                return self._feed(key, sender_event)
            case FromPeer(peer, message):
                if isinstance(message, KvReady):
                    return self._on_ready(peer, message, now)
                return self._on_message(peer, message)
            case PeerLost(peer_id):
                return self._on_peer_lost(peer_id, now)
            case Tick():
                return self._expire(now)

    def __len__(self) -> int:
        return len(self._senders) + len(self._early)

    def serves(self, transfer: int) -> bool:
        """Whether this transfer has a ticket here and has not ended."""
        return transfer in self._by_transfer

    def peers_served(self) -> set[int]:
        """The connections that something is being sent to."""
        return {sender.peer for sender in self._senders.values() if sender.peer is not None}

    def has_ended(self, key: AttemptKey) -> bool:
        """Whether nothing is offered any more for this attempt, as far as is remembered."""
        return attempt_of_part(key) in self._ended

    def sender(self, key: AttemptKey) -> Sender | None:
        return self._senders.get(key)

    def block_bytes(self, key: AttemptKey) -> int:
        """One block of what this sender sends."""
        return self._senders[key].shape.block_bytes

    def holds(self) -> list[tuple[AttemptKey, Lease]]:
        return self._leases.items()

    def check_invariants(self) -> None:
        if set(self._senders) != {key for key, _ in self._leases.items()}:
            raise AssertionError("a sender without a lease, or a lease without a sender")
        if len(self._by_secret) != len(self._senders):
            raise AssertionError("secrets and senders differ")
        for sender in self._senders.values():
            sender.check_invariants()

    # ------------------------------------------------------------ the engine and the daemon

    def _offer(self, ticket: Ticket, blocks: int, now: float) -> list[TicketAction]:
        """Ends at once where nothing can be held: released before, expired on arrival, another
        ticket of this attempt, or too many leases. A repeated offer is ignored."""
        key = (ticket.request_id, ticket.attempt)
        if key in self._senders:
            return []
        shape = self._shape_of(ticket)
        if shape is None:
            return [TicketAction(key, Ended(Code.KV_TRANSFER_FAILED, why_no_form(ticket)))]
        lease_ms = min(ticket.lease_ms, self._lease_ms)
        ended = self.has_ended(key) or ticket.secret in self._by_secret or lease_ms <= 0
        if ended or self._leases.grant(key, ticket.decode, blocks, now, lease_ms) is None:
            return [TicketAction(key, Ended(Code.CANCELLED, "the ticket has ended already"))]
        self._senders[key] = Sender(ticket, blocks, shape)
        self._by_secret[ticket.secret] = key
        early = self._early.pop(ticket.secret, None)
        actions = self._refuse_early(key, OTHER_TICKET)
        if early is None:
            return actions
        return [*actions, *self._serve(key, early.peer, early.message)]

    def _hand_over(self, event: HandOver, now: float) -> list[TicketAction]:
        sender = self._senders.get(event.kept)
        if sender is None:
            return []
        self._forget(event.kept, sender)
        return self._offer(event.ticket, event.blocks, now)

    def _release(self, key: AttemptKey, reason: str) -> list[TicketAction]:
        if key not in self._senders:
            self._ended.bury(key, reason)
            return self._refuse_early(key, reason)
        return self._feed(key, Cancel(reason))

    def _expire(self, now: float) -> list[TicketAction]:
        actions: list[TicketAction] = []
        for key in self._leases.expired(now):
            self._counters.leases_expired += bool(self._senders[key].ticket.decode)
            actions += self._feed(key, Expire())
        for secret, early in list(self._early.items()):
            if early.expires <= now:
                del self._early[secret]
                actions += self._refuse(early.peer, early.message, "no such ticket came")
        return actions

    # ------------------------------------------------------------ D

    def _on_ready(self, peer: ConnectedPeer, ready: KvReady, now: float) -> list[TicketAction]:
        key = self._by_secret.get(ready.secret)
        if key is not None:
            return self._serve(key, peer, ready)
        if self._is_repeated(ready.transfer):
            return []
        if self.has_ended(_key_of(ready)):
            return self._refuse(peer, ready, "the ticket has ended")
        if _key_of(ready) in self._senders:
            return self._refuse(peer, ready, OTHER_TICKET)
        older = self._early.pop(ready.secret, None)
        actions = [] if older is None else self._void_granted(older.peer, older.message)
        if len(self._early) >= EARLY_READY_MAX:
            return [*actions, *self._refuse(peer, ready, "no room for an early request")]
        patience_ms = min(ready.patience_ms or self._lease_ms, PATIENCE_MS_MAX)
        self._early[ready.secret] = _EarlyReady(peer, ready, now + patience_ms / 1000)
        return actions

    def _on_message(
        self, peer: ConnectedPeer, message: KvCredit | KvReleased | KvAbort
    ) -> list[TicketAction]:
        transfer = message.transfer
        key = self._by_transfer.get(transfer)
        if key is not None:
            return self._feed(key, message)
        early = self._early_of(peer, transfer)
        if early is not None and isinstance(message, KvCredit):
            granted = max(early.message.granted, message.granted)
            early.message = msgspec.structs.replace(early.message, granted=granted)
            return []
        if early is not None and isinstance(message, KvAbort):
            del self._early[early.message.secret]
            self._ended.bury(attempt_of_part(_key_of(early.message)), "aborted")
            return self._void_granted(peer, early.message)
        self._counters.stale += 1
        answered = self._answered.get(transfer)
        if answered is None or not isinstance(message, KvCredit) or message.granted <= answered:
            return []
        self._answered.bury(transfer, message.granted)
        return _voids(peer, transfer, answered, message.granted)

    def _on_peer_lost(self, peer_id: int, now: float) -> list[TicketAction]:
        actions: list[TicketAction] = []
        for secret, early in list(self._early.items()):
            if early.peer.id == peer_id:
                del self._early[secret]
        for key, sender in list(self._senders.items()):
            before = sender.transfer
            actions += self._feed(key, PeerLost(peer_id))
            if before is not None and sender.transfer is None:
                self._leases.shorten(key, now + GRACE_S)
        return actions

    def _is_repeated(self, transfer: int) -> bool:
        """Whether a KvReady with this transfer came before, and is or was answered; counts it."""
        early = any(early.message.transfer == transfer for early in self._early.values())
        repeated = early or transfer in self._by_transfer or transfer in self._answered
        self._counters.stale += repeated
        return repeated

    def _early_of(self, peer: ConnectedPeer, transfer: int) -> _EarlyReady | None:
        for early in self._early.values():
            if early.message.transfer == transfer and early.peer == peer:
                return early
        return None

    # ------------------------------------------------------------ senders

    def _serve(self, key: AttemptKey, peer: ConnectedPeer, ready: KvReady) -> list[TicketAction]:
        sender = self._senders[key]
        ticket = sender.ticket
        if (peer.name, peer.incarnation) != (ticket.decode, ticket.decode_incarnation):
            return self._refuse(peer, ready, "the ticket names another decode worker")
        if self._is_repeated(ready.transfer):
            return []
        if not peer.allows(ticket):
            return self._refuse(peer, ready, "the ticket is for KV of one layout")
        if not self._possible(ready, sender):
            return self._refuse(peer, ready, "blocks or message size out of bounds")
        self._by_transfer[ready.transfer] = key
        self._leases.restore(key)
        return self._feed(key, Ready(peer.id, ready))

    def _possible(self, ready: KvReady, sender: Sender) -> bool:
        try:
            plan = plan_of(ready, sender.shape)
        except ValueError:
            return False
        fits = plan.payload_bytes_max <= self._buffer_bytes[plan.direct]
        return plan.end <= sender.blocks and fits

    def _feed(self, key: AttemptKey, event: SendEvent) -> list[TicketAction]:
        sender = self._senders.get(key)
        if sender is None:
            return []
        before = sender.transfer, sender.granted
        actions = sender.handle(event)
        if before[0] is not None and before[0] != sender.transfer:
            self._by_transfer.pop(before[0], None)
            self._answered.bury(before[0], before[1])
        if sender.state in SEND_TERMINAL:
            self._forget(key, sender)
        return [TicketAction(key, action) for action in actions]

    def _forget(self, key: AttemptKey, sender: Sender) -> None:
        del self._senders[key]
        self._by_secret.pop(sender.ticket.secret, None)
        for transfer, owner in list(self._by_transfer.items()):
            if owner == key:
                del self._by_transfer[transfer]
        self._leases.release(key)
        self._ended.bury(attempt_of_part(key), sender.state.value)

    # ------------------------------------------------------------ refusals

    def _refuse(self, peer: ConnectedPeer, ready: KvReady, why: str) -> list[TicketAction]:
        self._counters.tickets_refused += 1
        refusal = KvRefused(transfer=ready.transfer, code=Code.NOT_FOUND, message=why)
        voids = self._void_granted(peer, ready)
        return [TicketAction(None, SendControl(peer.id, refusal)), *voids]

    def _refuse_early(self, key: AttemptKey, why: str) -> list[TicketAction]:
        actions: list[TicketAction] = []
        for secret, early in list(self._early.items()):
            asked = _key_of(early.message)
            if key in (asked, attempt_of_part(asked)):
                del self._early[secret]
                actions += self._refuse(early.peer, early.message, why)
        return actions

    def _void_granted(self, peer: ConnectedPeer, ready: KvReady) -> list[TicketAction]:
        """Answers every slot of a transfer that never began."""
        self._answered.bury(ready.transfer, ready.granted)
        return _voids(peer, ready.transfer, 0, ready.granted)


def _key_of(ready: KvReady) -> AttemptKey:
    return ready.request_id, ready.attempt


def _voids(peer: ConnectedPeer, transfer: int, first: int, upto: int) -> list[TicketAction]:
    """For slots [first, upto)."""
    return [TicketAction(None, SendVoid(peer.id, transfer, slot)) for slot in range(first, upto)]

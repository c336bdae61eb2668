"""P's counter: all tickets offered here, all D peers that ask, and what is left of both.

Theory of operation: pure, as the machines it holds. A `KvReady` finds its ticket by the secret; one
that comes before its ticket waits at the counter, for P's queue may be long: bounded, and as long
as D itself waits. An attempt has one ticket here, the first: after a router's restart P and D may
have been given different ones, and a D with the other one is refused at once. A ticket serves only
the D it names, in the incarnation it names. The lease runs from the offer; losing D's connection
shortens it to a grace in which D may come back. Transfers that have ended keep a tombstone with the
count of slots already answered, so that a late credit still gets its voids.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from common.errors import Code
from common.kv.handoff.sender import Sender, asked
from common.kv.handoff.tally import Tally
from common.kv.handoff.words import (
    SEND_TERMINAL,
    Action,
    Ahead,
    Cancel,
    Computed,
    Expire,
    PeerLost,
    Ready,
    SendEvent,
    SendVoid,
    Staged,
    Tell,
)
from common.kv.lease import Lease, LeaseTable, Tombstones
from common.kv.messages import KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from common.kv.plan import Shape
from common.messages import Ticket

LEASES = 4096
PARKED = 1024
TOMBSTONES = 8192
GRACE_S = 1.0
PATIENCE_MS_MAX = 600_000.0
OTHER_TICKET = "this attempt's KV is here under another ticket"

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of an endpoint, as its KvHello said."""

    id: int
    name: str
    incarnation: str


@dataclass(slots=True)
class _Parked:
    peer: Peer
    message: KvReady
    granted: int
    expires: float


@dataclass(frozen=True, slots=True)
class Out:
    """An action and the ticket it belongs to; `key` None where there is no ticket."""

    key: Key | None
    action: Action


class Desk:
    """`buffer_bytes`: the largest payload that one staging buffer holds. `tally`: counts what was
    refused, expired or stale."""

    def __init__(self, shape: Shape, buffer_bytes: int, lease_ms: float, tally: Tally) -> None:
        self._shape = shape
        self._buffer_bytes = buffer_bytes
        self._lease_ms = lease_ms
        self._tally = tally
        self._leases: LeaseTable[Key] = LeaseTable(LEASES)
        self._senders: dict[Key, Sender] = {}
        self._by_secret: dict[bytes, Key] = {}
        self._by_transfer: dict[int, Key] = {}
        self._parked: dict[bytes, _Parked] = {}
        self._ended: Tombstones[Key, str] = Tombstones(TOMBSTONES)
        self._answered: Tombstones[int, int] = Tombstones(TOMBSTONES)

    # ------------------------------------------------------------ from the engine and the daemon

    def offer(self, ticket: Ticket, blocks: int, now: float) -> list[Out] | None:
        """A prompt's KV is or will be here. None: refused, nothing is held (already released,
        expired by arrival, a duplicate, or the table is full)."""
        key = (ticket.request_id, ticket.attempt)
        if key in self._ended or key in self._senders or ticket.secret in self._by_secret:
            return None
        lease_ms = min(ticket.lease_ms, self._lease_ms)
        if lease_ms <= 0 or self._leases.grant(key, ticket.decode, blocks, now, lease_ms) is None:
            return None
        self._senders[key] = Sender(ticket, blocks, self._shape)
        self._by_secret[ticket.secret] = key
        parked = self._parked.pop(ticket.secret, None)
        outs = self._refuse_parked(key, OTHER_TICKET)
        if parked is None:
            return outs
        return [*outs, *self._serve(key, parked.peer, parked.message, parked.granted)]

    def computed(self, key: Key, blocks: int) -> list[Out]:
        return self._feed(key, Computed(blocks))

    def ahead(self, key: Key, blocks: int, layers: int) -> list[Out]:
        return self._feed(key, Ahead(blocks, layers))

    def release(self, key: Key, reason: str) -> list[Out]:
        """Idempotent; an unknown key is remembered, so that its offer will be refused."""
        if key not in self._senders:
            self._ended.bury(key, reason)
            return self._refuse_parked(key, reason)
        return self._feed(key, Cancel(reason))

    def staged(self, key: Key, transfer: int, index: int) -> list[Out]:
        return self._feed(key, Staged(transfer, index))

    # ------------------------------------------------------------ from D

    def ready(self, peer: Peer, message: KvReady, now: float) -> list[Out]:
        key = self._by_secret.get(message.secret)
        if key is not None:
            return self._serve(key, peer, message, message.granted)
        if self._seen(message.transfer):
            return []
        about = (message.request_id, message.attempt)
        if about in self._ended:
            return self._refuse(peer, message, message.granted, "the ticket has ended")
        if about in self._senders:
            return self._refuse(peer, message, message.granted, OTHER_TICKET)
        outs: list[Out] = []
        older = self._parked.pop(message.secret, None)
        if older is not None:
            self._answered.bury(older.message.transfer, older.granted)
            outs = self._voids(older.peer, older.message.transfer, 0, older.granted)
        if len(self._parked) >= PARKED:
            why = "no room for an early request"
            return [*outs, *self._refuse(peer, message, message.granted, why)]
        patience_ms = min(message.patience_ms or self._lease_ms, PATIENCE_MS_MAX)
        expires = now + patience_ms / 1000
        self._parked[message.secret] = _Parked(peer, message, message.granted, expires)
        return outs

    def _seen(self, transfer: int) -> bool:
        """A repeated KvReady: the first one is or was answered."""
        parked = any(each.message.transfer == transfer for each in self._parked.values())
        again = parked or transfer in self._by_transfer or transfer in self._answered
        self._tally.stale += again
        return again

    def credit(self, peer: Peer, message: KvCredit) -> list[Out]:
        key = self._by_transfer.get(message.transfer)
        if key is not None:
            return self._feed(key, message)
        for parked in self._parked.values():
            if parked.message.transfer == message.transfer and parked.peer == peer:
                parked.granted = max(parked.granted, message.granted)
                return []
        self._tally.stale += 1
        answered = self._answered.get(message.transfer)
        if answered is None or message.granted <= answered:
            return []
        self._answered.bury(message.transfer, message.granted)
        return self._voids(peer, message.transfer, answered, message.granted)

    def released(self, message: KvReleased) -> list[Out]:
        key = self._by_transfer.get(message.transfer)
        if key is None:
            self._tally.stale += 1
            return []
        return self._feed(key, message)

    def aborted(self, peer: Peer, message: KvAbort) -> list[Out]:
        key = self._by_transfer.get(message.transfer)
        if key is not None:
            return self._feed(key, message)
        for secret, parked in list(self._parked.items()):
            if parked.message.transfer == message.transfer and parked.peer == peer:
                del self._parked[secret]
                self._ended.bury((parked.message.request_id, parked.message.attempt), "aborted")
                self._answered.bury(message.transfer, parked.granted)
                return self._voids(peer, message.transfer, 0, parked.granted)
        self._tally.stale += 1
        return []

    def peer_lost(self, peer_id: int, now: float) -> list[Out]:
        outs: list[Out] = []
        for secret, parked in list(self._parked.items()):
            if parked.peer.id == peer_id:
                del self._parked[secret]
        for key, sender in list(self._senders.items()):
            before = sender.transfer
            outs += self._feed(key, PeerLost(peer_id))
            if before is not None and sender.transfer is None:
                self._leases.shorten(key, now + GRACE_S)
        return outs

    # ------------------------------------------------------------ time and sight

    def tick(self, now: float) -> list[Out]:
        outs: list[Out] = []
        for key in self._leases.expired(now):
            self._tally.leases_expired += 1
            outs += self._feed(key, Expire())
        for secret, parked in list(self._parked.items()):
            if parked.expires <= now:
                del self._parked[secret]
                outs += self._refuse(
                    parked.peer, parked.message, parked.granted, "no such ticket came"
                )
        return outs

    def __len__(self) -> int:
        return len(self._senders) + len(self._parked)

    def serves(self, transfer: int) -> bool:
        """It has a ticket here, and nothing has ended it."""
        return transfer in self._by_transfer

    def served(self) -> set[int]:
        """The peers that something is being sent to."""
        return {each.peer for each in self._senders.values() if each.peer is not None}

    def sender(self, key: Key) -> Sender | None:
        return self._senders.get(key)

    def holds(self) -> list[tuple[Key, Lease]]:
        return self._leases.items()

    def check_invariants(self) -> None:
        if set(self._senders) != {key for key, _ in self._leases.items()}:
            raise AssertionError("a sender without a lease, or a lease without a sender")
        if len(self._by_secret) != len(self._senders):
            raise AssertionError("secrets and senders differ")
        for sender in self._senders.values():
            sender.check_invariants()

    # ------------------------------------------------------------ inside

    def _serve(self, key: Key, peer: Peer, message: KvReady, granted: int) -> list[Out]:
        sender = self._senders[key]
        ticket = sender.ticket
        if (peer.name, peer.incarnation) != (ticket.decode, ticket.decode_incarnation):
            return self._refuse(peer, message, granted, "the ticket names another decode worker")
        if self._seen(message.transfer):
            return []
        if not self._possible(message, sender):
            return self._refuse(peer, message, granted, "blocks or message size out of bounds")
        self._by_transfer[message.transfer] = key
        ready = Ready(peer.id, _granting(message, granted))
        return self._feed(key, ready)

    def _possible(self, message: KvReady, sender: Sender) -> bool:
        try:
            plan = asked(message, self._shape)
        except ValueError:
            return False
        return plan.end <= sender.blocks and plan.payload_bytes_max <= self._buffer_bytes

    def _feed(self, key: Key, event: SendEvent) -> list[Out]:
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
        return [Out(key, action) for action in actions]

    def _forget(self, key: Key, sender: Sender) -> None:
        del self._senders[key]
        self._by_secret.pop(sender.ticket.secret, None)
        for transfer, owner in list(self._by_transfer.items()):
            if owner == key:
                del self._by_transfer[transfer]
        self._leases.release(key)
        self._ended.bury(key, sender.state.value)

    def _refuse(self, peer: Peer, message: KvReady, granted: int, why: str) -> list[Out]:
        self._tally.tickets_refused += 1
        self._answered.bury(message.transfer, granted)
        refusal = KvRefused(transfer=message.transfer, code=Code.NOT_FOUND, message=why)
        return [
            Out(None, Tell(peer.id, refusal)),
            *self._voids(peer, message.transfer, 0, granted),
        ]

    def _refuse_parked(self, key: Key, why: str) -> list[Out]:
        outs: list[Out] = []
        for secret, parked in list(self._parked.items()):
            if (parked.message.request_id, parked.message.attempt) == key:
                del self._parked[secret]
                outs += self._refuse(parked.peer, parked.message, parked.granted, why)
        return outs

    def _voids(self, peer: Peer, transfer: int, first: int, upto: int) -> list[Out]:
        return [Out(None, SendVoid(peer.id, transfer, i)) for i in range(first, upto)]


def _granting(message: KvReady, granted: int) -> KvReady:
    return msgspec.structs.replace(message, granted=granted)

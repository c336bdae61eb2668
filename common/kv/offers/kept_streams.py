"""The KV of streams that a D has given up and that go on at another D.

Theory of operation: the engine keeps the blocks, which are offered by a ticket for nobody (`keep`)
until the router's ticket for the next D comes (`hand_over`). The daemon announces each stream
(`expect`), because its engine may find that there is nothing to keep; the end of what was announced
is reported once, whatever happens. The three come from different threads, and in any order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.errors import Code
from common.identity import AttemptKey
from common.kv.handoff.protocol import Ended
from common.kv.layout import Mark
from common.kv.peers.channel import WorkerIdentity
from common.kv.sides.send import OnEnded, SendSide
from common.messages import KvReport, Ticket

SECRET_BYTES = 16
NOT_ALL_THERE = "its KV is not all there"


@dataclass(slots=True)
class _Expected:
    """A stream whose engine is about to give it up."""

    until: float
    """An instant."""
    ticket: Ticket | None = None
    """Of the D that takes it, if that is known already."""


class KeptStreams:
    """It runs on the KV thread."""

    def __init__(
        self,
        identity: WorkerIdentity,
        send_side: SendSide,
        *,
        keep_ms: float,
        on_ended: OnEnded,
        clock: Callable[[], float],
    ) -> None:
        """`on_ended`: as of `send_side`, for what was announced and never kept."""
        self._identity = identity
        self._send_side = send_side
        self._keep_ms = keep_ms
        self._on_ended = on_ended
        self._clock = clock
        self._expected: dict[AttemptKey, _Expected] = {}

    def __len__(self) -> int:
        """How many are announced and not kept yet; the others are offers of `send_side`."""
        return len(self._expected)

    def expect(self, key: AttemptKey) -> None:
        """The daemon gives this stream up; `keep` follows or came just before."""
        if self._send_side.offers(key):
            return
        expected = _Expected(self._clock() + self._keep_ms / 1000)
        if self._send_side.has_ended(key):
            self._not_kept(key, expected, NOT_ALL_THERE)
        else:
            self._expected[key] = expected

    def keep(self, key: AttemptKey, block_ids: Sequence[int], after: Mark | None = None) -> None:
        """The engine has given the stream up and keeps these blocks, none if they do not hold all
        KV once `after` has passed. With blocks it ends once, as an offer does."""
        expected = self._expected.pop(key, None)
        if block_ids:
            self._send_side.offer(self._ticket_for_nobody(key), len(block_ids))
            self._send_side.progress(key, block_ids, len(block_ids), 0, after)
            if expected is not None and expected.ticket is not None:
                self.hand_over(key, expected.ticket)
        elif expected is not None:
            self._not_kept(key, expected, NOT_ALL_THERE)
        else:
            self._send_side.release(key, NOT_ALL_THERE)

    def hand_over(self, kept: AttemptKey, ticket: Ticket) -> None:
        """What is kept, or will be, of this attempt is for the D of the ticket."""
        expected = self._expected.get(kept)
        if self._send_side.offers(kept):
            self._send_side.hand_over(kept, ticket)
        elif expected is not None:
            expected.ticket = ticket
        else:
            key = (ticket.request_id, ticket.attempt)
            self._send_side.release(key, "nothing is kept of this stream")

    def tick(self) -> None:
        now = self._clock()
        for key, expected in list(self._expected.items()):
            if expected.until <= now:
                del self._expected[key]
                self._not_kept(key, expected, "the engine did not keep its KV")

    def _not_kept(self, key: AttemptKey, expected: _Expected, reason: str) -> None:
        ticket = expected.ticket
        self._send_side.release(key, reason)
        if ticket is not None:
            self._send_side.release((ticket.request_id, ticket.attempt), reason)
        self._on_ended(self._ticket_for_nobody(key), KvReport(), Ended(Code.CANCELLED, reason))

    def _ticket_for_nobody(self, key: AttemptKey) -> Ticket:
        """No worker has an empty name."""
        identity = self._identity
        return Ticket(
            secret=os.urandom(SECRET_BYTES),
            request_id=key[0],
            attempt=key[1],
            fingerprint=identity.fingerprint,
            prefill=identity.name,
            prefill_incarnation=identity.incarnation,
            decode="",
            decode_incarnation="",
            kv_address="",
            lease_ms=self._keep_ms,
        )

"""D's handoffs, each by one fetch of `receive.py` or by one for each part of it.

It runs on the KV thread.
"""

from __future__ import annotations

from collections.abc import Callable

from common.config import KvConfig
from common.errors import Code
from common.identity import AttemptKey, attempt_of_part
from common.kv.handoff.parts import PartEnds, key_of, tickets_of
from common.kv.handoff.protocol import Ended
from common.kv.handoff.receiver import handoff_spec
from common.kv.handoff.ticket_table import why_no_form
from common.kv.layout import Mark
from common.kv.packing import Packing, Packings
from common.kv.plan import KvShape
from common.kv.sides.receive import OnEnded, ReceiveSide
from common.messages import KvReport, Ticket


class Fetches:
    """Those of an engine."""

    def __init__(
        self,
        config: KvConfig,
        packings: Packings,
        shape: KvShape,
        on_ended: OnEnded,
        clock: Callable[[], float],
    ) -> None:
        """`shape`: of the engine's blocks, compressed only if that is wanted. `on_ended` is called
        once for each `fetch`. The receive side has to be set before the first."""
        self._config, self._packings, self._shape = config, packings, shape
        self._on_ended, self._clock = on_ended, clock
        self._parts = PartEnds()
        self.receive_side: ReceiveSide

    def fetch(
        self, ticket: Ticket, first_block: int, block_ids: list[int], after: Mark | None = None
    ) -> None:
        """Fetches blocks [first_block, ...) of the ticket's prompt to these blocks, once `after`
        has passed."""
        if key_of(ticket) in self._parts:
            ended = Ended(Code.DUPLICATE_REQUEST, "this ticket is being fetched already")
            self._on_ended(ticket, KvReport(), ended)
            return
        try:
            tickets = tickets_of(ticket, self._packings.rank)
            parts = [(part, self._packing(part)) for part in tickets]
        except ValueError as error:
            self._on_ended(ticket, KvReport(), Ended(Code.KV_TRANSFER_FAILED, str(error)))
            return
        self._parts.begin(ticket, tickets)
        for part, packing in parts:
            if self._parts.failed(key_of(ticket)):
                self.end(part, KvReport(), Ended(Code.CANCELLED, "another part failed"))
                continue
            shape = packing.shape if part.canonical else self._shape
            now = self._clock()
            run = range(first_block, first_block + len(block_ids))
            spec = handoff_spec(self._config, shape, run, now, on_card=packing.on_card)
            self.receive_side.fetch(part, spec, block_ids, packing, after)

    def cancel(self, key: AttemptKey, reason: str) -> None:
        """Idempotent."""
        for part in self._parts.keys(key):
            self.receive_side.cancel(part, reason)

    def end(self, ticket: Ticket, report: KvReport, ended: Ended) -> None:
        """A fetch of the receive side has ended. The other parts of one that failed are given up,
        because the engine computes the prompt itself then."""
        whole = self._parts.end(ticket, report, ended)
        if whole is not None:
            self._on_ended(*whole)
        elif ended.error:
            self.cancel(attempt_of_part(key_of(ticket)), "another part failed")

    def _packing(self, ticket: Ticket) -> Packing:
        """Raises ValueError if there is none for this ticket."""
        packing = self._packings.of(ticket)
        if packing is None:
            raise ValueError(why_no_form(ticket))
        return packing

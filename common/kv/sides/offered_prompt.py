"""What P holds for one ticket, of which the engine and the ticket table each know a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from common.identity import AttemptKey
from common.kv.checksum.header import HEADER_BYTES
from common.kv.handoff.protocol import Ended
from common.kv.layout import Mark
from common.kv.packing import Packing
from common.messages import KvReport, Ticket


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Where the blocks of a prompt lie that are not the engine's."""

    packing: Packing
    judge: Callable[[range], bool]
    """Whether these blocks of the prompt, which have been copied, were what they should be."""


@dataclass(slots=True)
class OfferedPrompt:
    """A prompt whose KV is or will be here, under one ticket. If the ticket is in parts
    (`handoff/parts.py`), there is a sender for each, and all send out of the same blocks."""

    ticket: Ticket
    """Names the attempt that the engine knows, which of a moved stream is the one before."""
    key: AttemptKey
    """The attempt of D."""
    stored: StoredBlocks | None = None
    """None for the engine's blocks."""
    blocks: list[int] = field(default_factory=list)
    """The ids of the prompt's blocks; empty once the engine took them back."""
    after: Mark | None = None
    """After which these blocks hold what was said of them; None: they do now."""
    copies: int = 0
    """Out of the blocks, which run."""
    over: bool = False
    """The last sender has ended."""
    senders: dict[AttemptKey, Packing | None] = field(default_factory=dict)
    """Those in the ticket table, with what they copy by; None for one that has no form of this KV
    and ends at once."""
    parts: int = 1
    """How many senders there were in the beginning."""
    messages: int = 0
    payload_bytes: int = 0
    """Payload given to the transport or loaned."""
    sent_bytes: int = 0
    """Payload that the transport has sent, or of which the offset was sent."""
    early_bytes: int | None = None
    """`sent_bytes` when the prefill ended; None before."""
    transfer: int | None = None
    """The transfer that `fp8` was chosen for."""
    fp8: bool = False
    raw_bytes: int = 0
    """As `payload_bytes`, before compression."""
    compression: str = ""
    ended: Ended = field(default_factory=Ended)
    """How the senders that have ended did."""

    def report(self) -> KvReport:
        """P's, of the whole."""
        return KvReport(
            messages=self.messages,
            payload_bytes=self.payload_bytes,
            wire_bytes=self.payload_bytes + HEADER_BYTES * self.messages,
            early_bytes=self.early_bytes or 0,
            compression=self.compression,
            raw_bytes=self.raw_bytes,
            element=self.ticket.element,
        )

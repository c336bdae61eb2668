"""What a slot of the store holds, and what may follow on what."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.kv.store.table import BlockName

HASH_END_BYTES = 8
"""So much of the end of a block's hash is what an engine's events tell of it."""


class SlotState(enum.StrEnum):
    """What a slot holds."""

    FREE = "free"
    WRITING = "writing"
    """Some rank has not reported its copy."""
    READY = "ready"
    READING = "reading"
    """Found, and being copied to the engine for at least one request."""
    DAMAGED = "damaged"
    """Found damaged or dropped, and some copy from it has not ended."""


SLOT_TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    SlotState.FREE: frozenset({SlotState.WRITING}),
    SlotState.WRITING: frozenset({SlotState.READY, SlotState.FREE}),
    SlotState.READY: frozenset({SlotState.READING, SlotState.FREE}),
    SlotState.READING: frozenset({SlotState.READY, SlotState.DAMAGED}),
    SlotState.DAMAGED: frozenset({SlotState.FREE}),
}


READABLE = frozenset({SlotState.READY, SlotState.READING})
"""Those whose block can be found."""


@dataclass(slots=True)
class Slot:
    """One place for a block."""

    state: SlotState = SlotState.FREE
    name: BlockName | None = None
    """None if it is free."""
    owner: bytes = b""
    """Whose block it is (`recency.owner_of`); counts while the slot is not free."""
    awaited: int = 0
    """Ranks that have not reported their write."""
    whole: bool = True
    """Whether every rank that reported has written the block."""
    readers: int = 0
    expires: float = 0.0
    """An instant; counts while the slot is ready."""

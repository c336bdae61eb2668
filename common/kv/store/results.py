"""What the store of one rank consists of, and what it reports to the scheduler's half."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.identity import AttemptKey
from common.kv.store.disk import DiskPlace
from common.kv.store.table import BlockName
from common.messages import KvHolder


@dataclass(frozen=True, slots=True)
class StoreSize:
    """What the store of one rank consists of."""

    slots: int
    """Blocks in memory."""
    ttl_s: float
    disk: DiskPlace | None = None

    @property
    def told(self) -> dict[str, int]:
        """What others may pull, as in `KvListening`."""
        below = self.disk.slots if self.disk is not None else 0
        return {"pull_blocks": self.slots, "disk_blocks": below}


@dataclass(slots=True)
class StoreResults:
    """What ended on one rank."""

    written: list[int] = field(default_factory=list)
    """Slots that hold their block now."""
    dropped: list[int] = field(default_factory=list)
    """Slots whose save was withdrawn."""
    damaged: list[int] = field(default_factory=list)
    """Slots that did not hold what a load wanted of them."""
    loaded: list[str] = field(default_factory=list)
    """Requests whose load has ended, of which `failed` are a part."""
    failed: list[str] = field(default_factory=list)
    spilled: list[int] = field(default_factory=list)
    """Slots of the disk that hold their block now."""
    unspilled: list[int] = field(default_factory=list)
    """Slots of the disk to which their block was not written."""
    disk_damaged: list[int] = field(default_factory=list)
    """Slots of the disk that did not hold what a load wanted of them."""
    disk_off: bool = False
    """Whether the disk has failed, and is not used any more."""
    dropped_ends: list[bytes] = field(default_factory=list)
    """The ends of the hashes of blocks that an operator has dropped from memory."""
    held: dict[str, int] = field(default_factory=dict)
    """For pulls that failed, how many of their leading blocks the source had."""
    holders: dict[AttemptKey, KvHolder | None] = field(default_factory=dict)
    """Running streams whose blocks another holder than before is to have from now on, or nobody."""
    used: list[BlockName] = field(default_factory=list)
    """Blocks on the disk that other workers have got, in the order of their prompts."""

    def joined(self, other: StoreResults) -> StoreResults:
        """Those of two ranks."""
        return StoreResults(
            self.written + other.written,
            self.dropped + other.dropped,
            self.damaged + other.damaged,
            self.loaded + other.loaded,
            self.failed + other.failed,
            self.spilled + other.spilled,
            self.unspilled + other.unspilled,
            self.disk_damaged + other.disk_damaged,
            self.disk_off or other.disk_off,
            self.dropped_ends + other.dropped_ends,
            self.held | other.held,
            self.holders | other.holders,
            self.used + other.used,
        )

    def __bool__(self) -> bool:
        return self != StoreResults()

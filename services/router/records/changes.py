"""What changed in the rows of workers since it was last read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.messages import Role

if TYPE_CHECKING:
    from services.router.records.worker import Worker


@dataclass(slots=True)
class Changes:
    """What changed since it was last read. Every row of a worker writes to the same object.
    `WorkerSnapshots` reads and clears `stale_snapshots`, the core reads and clears the rest."""

    #: By role, the workers whose snapshot is not current, by identity.
    stale_snapshots: dict[Role, dict[str, Worker]] = field(
        default_factory=lambda: {Role.PREFILL: {}, Role.DECODE: {}, Role.MIXED: {}}
    )
    #: Whether the state of a worker changed, so that the summary for gateways may be stale.
    availability: bool = False
    #: Whether something that queued attempts wait for may have become free.
    capacity: bool = False

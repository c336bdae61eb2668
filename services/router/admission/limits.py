"""The limits that an operator may change while the router runs; `baton ctl limits`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from common.errors import BatonError, Code
from common.net.admin_verbs import LIMIT_BOUNDS


@dataclass(frozen=True, slots=True)
class Limits:
    """The values in force."""

    #: Requests placed at once; 0 = as many as decode slots allow.
    max_active: int
    #: Requests waiting in the queue.
    max_queue: int
    #: Bytes of the bodies waiting in the queue.
    queue_bytes_max: int
    #: The TTFT that admission promises; 0 = none.
    ttft_slo_ms: float


def with_changes(limits: Limits, changes: dict[str, int]) -> Limits:
    """Raises BatonError(INVALID_REQUEST) that names the limit and the allowed values."""
    for name, value in changes.items():
        if name not in LIMIT_BOUNDS:
            known = ", ".join(field.name for field in fields(limits))
            raise BatonError(Code.INVALID_REQUEST, f"no limit {name[:64]!r}; there are: {known}")
        least, most = LIMIT_BOUNDS[name]
        if not least <= value <= most:
            raise BatonError(
                Code.INVALID_REQUEST, f"{name} must be between {least} and {most}, not {value}"
            )
    return replace(limits, **changes)

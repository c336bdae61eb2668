"""The limits that an operator may change while the router runs; `baton ctl limits`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from common.errors import BatonError, Code

BYTES_MAX = 1 << 40


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


BOUNDS: dict[str, tuple[int, int]] = {
    "max_active": (0, 1_000_000),
    "max_queue": (0, 1_000_000),
    "queue_bytes_max": (1, BYTES_MAX),
    "ttft_slo_ms": (0, 3_600_000),
}


def with_changes(limits: Limits, changes: dict[str, int]) -> Limits:
    """Raises BatonError(INVALID_REQUEST) that names the limit and the allowed values."""
    for name, value in changes.items():
        if name not in BOUNDS:
            known = ", ".join(field.name for field in fields(limits))
            raise BatonError(Code.INVALID_REQUEST, f"no limit {name[:64]!r}; there are: {known}")
        least, most = BOUNDS[name]
        if not least <= value <= most:
            raise BatonError(
                Code.INVALID_REQUEST, f"{name} must be between {least} and {most}, not {value}"
            )
    return replace(limits, **changes)

"""The limits that an operator may change while the router runs; `baton ctl limits`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from common.errors import BatonError, Code

BYTES_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_active`: requests placed at once, 0 = what decode slots allow. `max_queue`,
    `queue_bytes_max`: of the queue. `ttft_slo_ms`: 0 = none."""

    max_active: int
    max_queue: int
    queue_bytes_max: int
    ttft_slo_ms: float


BOUNDS: dict[str, tuple[int, int]] = {
    "max_active": (0, 1_000_000),
    "max_queue": (0, 1_000_000),
    "queue_bytes_max": (1, BYTES_MAX),
    "ttft_slo_ms": (0, 3_600_000),
}


def changed(limits: Limits, changes: dict[str, int]) -> Limits:
    """Raises BatonError that names the limit and what it may be."""
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

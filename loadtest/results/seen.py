"""What every tool tells of a load, in one shape."""

from __future__ import annotations

from typing import NamedTuple


class Latency(NamedTuple):
    """Milliseconds; None where the tool does not tell it."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None


class Seen(NamedTuple):
    """`tool`: who measured. `load`: what was asked, in words. `seconds`: how long it took.
    `failed`: None where the tool does not say. `tpot`: mean time of an answer's further tokens.
    `origin`: when and on what, as far as the file tells."""

    tool: str
    load: str
    ok: int
    failed: int | None
    seconds: float
    requests_per_s: float
    input_tokens_per_s: float | None
    output_tokens_per_s: float
    ttft: Latency
    tpot: Latency
    e2e: Latency
    origin: str

"""The figures of a load that every tool reports, in one struct."""

from __future__ import annotations

from typing import NamedTuple


class Latency(NamedTuple):
    """Milliseconds; None if the tool does not report the figure."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    mean: float | None = None


class LoadSummary(NamedTuple):
    """The figures that all tools report."""

    #: The tool that measured.
    tool: str
    #: What was sent, as text.
    load: str
    ok: int
    #: None if the tool does not report it.
    failed: int | None
    #: Duration of the load.
    seconds: float
    requests_per_s: float
    input_tokens_per_s: float | None
    output_tokens_per_s: float
    ttft: Latency
    #: Mean time of an answer's further tokens.
    tpot: Latency
    e2e: Latency
    #: When and on which machine, as far as the file names them.
    origin: str

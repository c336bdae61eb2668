"""`[router.liveness]`: when the router suspects a peer, ejects it and trusts it again."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from common.config.base import Milliseconds, Section


class LivenessConfig(Section, frozen=True):
    """When a router stops trusting a peer, and when it trusts it again.

    A suspect worker gets nothing new. An ejected worker is given up with its requests: it was
    silent for all of `router.worker_timeout_ms`, or its engine made no step for twice its limit. A
    worker whose connection closed is lost at once; no limit applies to that."""

    suspect_share: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """Share of `router.worker_timeout_ms` after which a silent worker is suspect."""
    stall_ms: Annotated[float, Meta(ge=100)] = 1_000.0
    """Least time without a step after which a busy engine is suspect."""
    stall_steps: Annotated[float, Meta(ge=2)] = 10.0
    """Multiple of its own p99 step after which a busy engine is suspect, if that is longer than
    `stall_ms`. While the p99 is unknown, the limit is this many times `stall_ms`."""
    eject_share_max: Annotated[float, Meta(ge=0, le=1)] = 0.34
    """Largest share of a pool that is ejected on suspicion, though always one worker. If more than
    a third looks dead at once, the fault is likelier the network's or the router's own."""
    proof_ms: Milliseconds = 1_000.0
    """Time without a fault after which a suspect worker gets work again. It doubles with each
    suspicion within `flap_window_ms`."""
    proof_ms_max: Milliseconds = 30_000.0
    """Longest time that a worker must be without a fault before it gets work again."""
    flap_window_ms: Milliseconds = 60_000.0
    """Period within which repeated suspicions of a worker add up."""
    late_tick_ms: Annotated[float, Meta(ge=300)] = 1_000.0
    """Time for which the router itself must have stood still to forgive the silence that it
    finds."""
    gateway_grace_ms: Milliseconds = 2_000.0
    """How long the requests of a gateway whose connection closed are kept for its return."""
    rebuild_ms: Milliseconds = 2_000.0
    """Longest time for which a router that starts places nothing while it waits for the workers of
    the fleet file to report what they hold."""
    deaths_max: Annotated[int, Meta(ge=1)] = 2
    """Workers that die with a prompt before it is tried once more, alone on a decode worker. If
    that one dies, too, the prompt is quarantined. One death is chance."""
    trial_wait_ms: Milliseconds = 2_000.0
    """How long such a trial waits until a decode worker has nothing else; then it runs with the
    least company there is."""

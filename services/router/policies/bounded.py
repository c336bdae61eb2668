"""The bound that keeps affinity from overloading a worker: consistent hashing with bounded loads
(Mirrokni, Thorup, Zadimoghaddam 2018). A worker above `LOAD_FACTOR` times the mean of its role, and
some slack for small numbers, is no longer preferred, whatever it has."""

from __future__ import annotations

from collections.abc import Sequence

from services.router.placement_types import Ask, WorkerView

LOAD_FACTOR = 1.25
REQUESTS_SLACK = 2
PROMPTS_SLACK = 2


def decode_limit(views: Sequence[WorkerView]) -> float:
    """Requests beyond which affinity does not count."""
    mean = sum([view.requests for view in views]) / max(1, len(views))
    return LOAD_FACTOR * mean + REQUESTS_SLACK


def prefill_limit(ask: Ask, views: Sequence[WorkerView]) -> float:
    """Prompt tokens ahead beyond which affinity does not count."""
    mean = sum([view.queued for view in views]) / max(1, len(views))
    return LOAD_FACTOR * mean + PROMPTS_SLACK * ask.prompt_tokens

"""The load bound of the affinity policies: consistent hashing with bounded loads (Mirrokni, Thorup,
Zadimoghaddam 2018). A worker above `LOAD_FACTOR` times the mean load of its role, plus some slack
for small numbers, is no longer preferred, whatever it has cached."""

from __future__ import annotations

from services.router.placement.types import ResourceRequest, Views

LOAD_FACTOR = 1.25
REQUESTS_SLACK = 2
PROMPTS_SLACK = 2


def decode_limit(views: Views) -> float:
    """Requests of a decode worker above which affinity does not count."""
    mean = sum([view.requests for view in views]) / max(1, len(views))
    return LOAD_FACTOR * mean + REQUESTS_SLACK


def prefill_limit(request: ResourceRequest, views: Views) -> float:
    """Prompt tokens ahead of a prefill worker above which affinity does not count."""
    mean = sum([view.queued for view in views]) / max(1, len(views))
    return LOAD_FACTOR * mean + PROMPTS_SLACK * request.prompt_tokens

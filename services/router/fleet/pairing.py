"""Which workers may hand the KV of prompts over to which.

This is asked of all pairs of a fleet, and so makes no snapshots.
"""

from __future__ import annotations

from services.router.placement.types import may_hand_over
from services.router.records.worker import Worker


def may_give(giver: Worker, taker: Worker) -> bool:
    """As `WorkerView.may_give`."""
    ours, theirs = giver.capacity.kv_form, taker.capacity.kv_form
    return may_hand_over(giver.fingerprint, ours, taker.fingerprint, theirs)

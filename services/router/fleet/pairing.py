"""Which workers may hand the KV of prompts over to which.

This is asked of all pairs of a fleet, and so makes no snapshots.
"""

from __future__ import annotations

from services.router.placement.types import WorkerView, may_hand_over
from services.router.records.worker import Worker


def may_give(giver: Worker, taker: Worker) -> bool:
    """As `WorkerView.may_give`."""
    ours, theirs = giver.capacity.kv_form, taker.capacity.kv_form
    return may_hand_over(giver.fingerprint, ours, taker.fingerprint, theirs)


def can_take(decode: WorkerView, source: Worker) -> bool:
    """Whether this worker can take the KV of a stream from the other."""
    form, taken = source.capacity.kv_form, decode.kv_form
    gives = may_hand_over(source.fingerprint, form, decode.fingerprint, taken)
    return gives and decode.identity != source.identity

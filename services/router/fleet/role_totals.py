"""Sums over the ready workers of a role. They are updated with each snapshot (`snapshots.py`), so
that admission costs the same with two workers as with thousands."""

from __future__ import annotations

from services.router.placement.types import WorkerView

EMPTY = WorkerView("", "", "", "", "", 1, 0, 0, 0, 0, 0, prefill_speed=0.0)


class Totals:
    __slots__ = (
        "kv_tokens",
        "kv_tokens_max",
        "latest",
        "mixed",
        "queued",
        "requests",
        "slots",
        "speed",
        "workers",
    )

    def __init__(self) -> None:
        self.workers = 0
        #: Those of them that are mixed, and count in the sums of either role.
        self.mixed = 0
        #: How many typical workers compute prompts as fast.
        self.speed = 0.0
        #: Prompt tokens that were assigned and are not computed yet.
        self.queued = 0
        #: Requests on the workers.
        self.requests = 0
        #: Requests that they may have now; fewer than they have slots while one starts slowly.
        self.slots = 0
        #: KV tokens promised or held, and those that may be promised.
        self.kv_tokens = self.kv_tokens_max = 0
        #: The snapshot that was taken last: the KV of all workers is of one kind.
        self.latest = EMPTY

    def replace(self, old: WorkerView | None, new: WorkerView | None) -> None:
        """The snapshot of one worker changed. None: it had none before, or has none now."""
        old, new = old or EMPTY, new or EMPTY
        self.workers += (new is not EMPTY) - (old is not EMPTY)
        self.mixed += new.mixed - old.mixed
        self.speed += new.prefill_speed - old.prefill_speed
        self.queued += new.queued - old.queued
        self.requests += new.requests - old.requests
        self.slots += new.requests_max - old.requests_max
        self.kv_tokens += new.kv_tokens - old.kv_tokens
        self.kv_tokens_max += new.kv_tokens_max - old.kv_tokens_max
        if new is not EMPTY:
            self.latest = new

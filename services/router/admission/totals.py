"""Sums over the ready workers of a role, kept as their snapshots come and go (`board.py`), so that
admission costs the same with two workers as with thousands."""

from __future__ import annotations

from services.router.placement_types import WorkerView

NOBODY = WorkerView("", "", "", "", "", 1, 0, 0, 0, 0, 0)


class Totals:
    """`slots` may be fewer than the workers have, while one starts slowly. `kv_token_bytes`: what a
    token's KV weighs, summed over the workers too."""

    __slots__ = ("kv_token_bytes", "kv_tokens", "kv_tokens_max", "queued", "requests", "slots",
                 "workers")  # fmt: skip

    def __init__(self) -> None:
        self.workers = self.queued = self.requests = self.slots = 0
        self.kv_tokens = self.kv_tokens_max = 0
        self.kv_token_bytes = 0.0

    def change(self, old: WorkerView | None, new: WorkerView | None) -> None:
        """None: it was not there before, or is there no more."""
        old, new = old or NOBODY, new or NOBODY
        self.workers += (new is not NOBODY) - (old is not NOBODY)
        self.queued += new.queued - old.queued
        self.requests += new.requests - old.requests
        self.slots += new.requests_max - old.requests_max
        self.kv_tokens += new.kv_tokens - old.kv_tokens
        self.kv_tokens_max += new.kv_tokens_max - old.kv_tokens_max
        self.kv_token_bytes += new.kv_token_bytes - old.kv_token_bytes

"""Sums over the ready workers of a role, kept as their snapshots come and go (`board.py`), so that
admission costs the same with two workers as with thousands."""

from __future__ import annotations

from services.router.placement_types import WorkerView


class Totals:
    """`slots` may be fewer than the workers have, while one starts slowly."""

    __slots__ = ("kv_tokens", "kv_tokens_max", "queued", "requests", "slots",
                 "workers")  # fmt: skip

    def __init__(self) -> None:
        self.workers = self.queued = self.requests = self.slots = 0
        self.kv_tokens = self.kv_tokens_max = 0

    def count(self, view: WorkerView, sign: int) -> None:
        """`sign`: 1 when it comes, -1 when it goes."""
        self.workers += sign
        self.queued += sign * view.queued
        self.requests += sign * view.requests
        self.slots += sign * view.requests_max
        self.kv_tokens += sign * view.kv_tokens
        self.kv_tokens_max += sign * view.kv_tokens_max

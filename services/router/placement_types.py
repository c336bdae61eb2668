"""The plain values that placement reads and writes: snapshots in, a placement or a wait out."""

from __future__ import annotations

import enum
from typing import NamedTuple

CANDIDATES_MAX = 8


class Ask(NamedTuple):
    """What a request needs, in tokens."""

    prompt_tokens: int
    max_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens


class WorkerView(NamedTuple):
    """A ready worker at one instant. `kv_tokens_max` is what may be granted (already scaled by
    kv_grant_max), `kv_tokens` what is granted or held by requests of an earlier router, `queued`
    the prompt tokens that a prefill worker was given and has not yet computed, `decoding` the
    streams whose first token a decode worker has made."""

    name: str
    identity: str
    incarnation: str
    fingerprint: str
    kv_address: str
    block_tokens: int
    max_model_len: int
    kv_tokens: int
    kv_tokens_max: int
    requests: int
    requests_max: int
    queued: int = 0
    decoding: int = 0

    def kv_need(self, tokens: int) -> int:
        """Whole blocks for this many tokens, in tokens."""
        return -(-tokens // self.block_tokens) * self.block_tokens


class WaitFor(enum.Enum):
    """What a request that cannot be placed now waits for."""

    WORKER = "a ready decode worker"
    SLOT = "a free decode slot"
    KV = "free KV blocks on a decode worker"
    PREFILL = "a free prefill worker"


class Candidate(NamedTuple):
    """One worker that could have been chosen; lower scores are better, compared left to right."""

    role: str
    name: str
    score: tuple[float, ...]


class Placement(NamedTuple):
    """The choice, and why. `prefill` None: D computes the prompt itself, for the reason in
    `sentence`. `candidates`: the best `CANDIDATES_MAX` of each role."""

    decode: WorkerView
    prefill: WorkerView | None
    policy: str
    sentence: str
    candidates: tuple[Candidate, ...]

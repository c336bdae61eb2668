"""The plain values that placement reads and writes: snapshots in, a placement or a wait out.

Of a policy: scores are compared left to right, lower is better, ties go to
the worker that was given nothing for the longest time. Scores come for all candidates at once,
because one call for each would cost more than the scoring.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from common.config import Mode, RemotePrefill

CANDIDATES_MAX = 8

Score = tuple[float, ...]


class Ask(NamedTuple):
    """What a request needs, in tokens, and what placement may go by. `prefix`: hashes of its
    leading whole blocks (`common.prefix`), kept until it is placed. `local_reason`: why D must
    compute the prompt itself; empty = it need not."""

    prompt_tokens: int
    max_tokens: int
    session: str = ""
    local_reason: str = ""
    prefix: tuple[bytes, ...] = ()

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens


class WorkerView(NamedTuple):
    """A ready worker at one instant. `kv_tokens_max` is what may be granted (already scaled by
    kv_grant_max), `kv_tokens` what is granted or held by requests of an earlier router, both of
    them whole blocks, `queued` the prompt tokens that it was given to compute and has not computed
    yet, `decoding` the streams whose first token a decode worker has made, `given` the number of
    the last placement that it was part of, `kv_token_bytes` what one token's KV weighs."""

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
    given: int = 0
    kv_token_bytes: float = 0.0
    fingerprint_parts: Mapping[str, str] = {}

    def kv_need(self, tokens: int) -> int:
        """Whole blocks for this many tokens, in tokens."""
        return -(-tokens // self.block_tokens) * self.block_tokens


class Rates(NamedTuple):
    """What the fleet was measured to do, for a prompt of this length; the defaults are priors of a
    small model on a CPU. `prefill_tokens_per_s`, `local_tokens_per_s`: of a prefill and of a decode
    worker. `pair_bytes_per_s`: by the names of P and D; None = `kv_bytes_per_s` for all.
    `handoff_s`: from P's end, or the wire's if that is later, to D's first token. `step_s`,
    `step_s_per_seq`: a decode step, alone and for each sequence more. `out_tokens`: how long the
    answer will be (0 = not known: as long as asked for). `measured`: enough prefills and handoffs
    were seen."""

    prefill_tokens_per_s: float = 8_000.0
    local_tokens_per_s: float = 8_000.0
    kv_bytes_per_s: float = 5e8
    pair_bytes_per_s: Callable[[str, str], float] | None = None
    handoff_s: float = 0.02
    step_s: float = 0.01
    step_s_per_seq: float = 0.0005
    out_tokens: float = 0.0
    measured: bool = False


class Rules(NamedTuple):
    """What the operator wants of the governor."""

    mode: Mode = "disaggregated"
    remote_prefill: RemotePrefill = "always"


class Known(NamedTuple):
    """What placement knows besides the snapshots, for one request. `cached`: by identity, leading
    tokens of the prompt whose KV the worker has; who has none is not in it. `barred`: pairs (P, D)
    that must not hand over now. `local`: D computes the prompt, whoever is D. `was_remote`: how a
    prompt of this size was decided last. `probe`: it was local for so long that remote shall be
    measured again."""

    cached: Mapping[str, int] = {}
    rates: Rates = Rates()
    rules: Rules = Rules()
    barred: frozenset[tuple[str, str]] = frozenset()
    local: bool = False
    was_remote: bool | None = None
    probe: bool = False


NOTHING = Known()


class Policy(Protocol):
    """A module in `policies/`; its functions are pure. Sentences are about the chosen one."""

    NAME: str
    HELP: str

    def decode_scores(self, ask: Ask, known: Known, views: Sequence[WorkerView]) -> list[Score]: ...

    def prefill_scores(
        self, ask: Ask, known: Known, views: Sequence[WorkerView], decode: WorkerView
    ) -> list[Score]: ...

    def decode_sentence(self, ask: Ask, known: Known, view: WorkerView, candidates: int) -> str: ...

    def prefill_sentence(
        self, ask: Ask, known: Known, view: WorkerView, candidates: int
    ) -> str: ...


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
    score: Score


class Placement(NamedTuple):
    """The choice, and why. `prefill` None: D computes the prompt itself, for the reason in
    `sentence`. `candidates`: the best `CANDIDATES_MAX` of each role. `weighed`: the governor
    compared both ways and chose, rather than having no choice."""

    decode: WorkerView
    prefill: WorkerView | None
    policy: str
    sentence: str
    candidates: tuple[Candidate, ...]
    weighed: bool = False

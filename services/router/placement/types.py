"""The plain values of placement: a request and snapshots of workers go in, a `Placement` or a
`WaitFor` comes out."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from common.blocks import KvGroup, blocks_to_move, keeps_state, kv_need
from common.config import Mode, RemotePrefill

CANDIDATES_MAX = 8

Score = tuple[float, ...]
"""Compared from left to right; lower is better."""


class ResourceRequest(NamedTuple):
    """What a request needs, and what placement may use to choose a worker for it."""

    #: Tokens of the prompt.
    prompt_tokens: int
    #: Tokens that the answer may have at most.
    max_tokens: int
    #: The client's session id; empty = none.
    session: str = ""
    #: Why the decode worker must compute the prompt itself; empty = it need not.
    local_reason: str = ""
    #: Hashes of the prompt's leading whole blocks (`common.prefix`); dropped once it is placed.
    prefix: tuple[bytes, ...] = ()
    #: Id of the LoRA adapter, which its workers must have; empty = none.
    adapter: str = ""
    #: Tokens of prompt and answer whose KV it is promised now (`budget.py`); 0 = all.
    kv_tokens: int = 0
    #: Whether patient workers may have it: it is of the lowest class.
    patient: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.max_tokens

    @property
    def promised_tokens(self) -> int:
        return self.kv_tokens or self.total_tokens


KvForm = tuple[str, str, str]
"""As `Capacity.kv_form`."""


def may_hand_over(fingerprint: str, form: KvForm, taker: str, taker_form: KvForm) -> bool:
    """Whether KV of prompts may go from a worker to a taker, by the fingerprints and forms of both:
    their layouts are equal, or what their KV means is, perhaps but for its precision."""
    if fingerprint == taker:
        return True
    pairs = zip(form[:2], taker_form[:2], strict=True)
    return any(ours != "" and ours == theirs for ours, theirs in pairs)


class Speed(NamedTuple):
    """Of a worker."""

    #: How fast it computes prompts, beside the workers of its role, and makes steps, beside its
    #: fleet; 1 = as fast.
    prefill: float = 1.0
    step: float = 1.0
    #: Whether it gets the lowest class only, because it is too slow for the others.
    patient: bool = False
    #: When a stream of it ended last, of so many that the speed of its steps is known.
    measured: float = float("-inf")


TYPICAL = Speed()


class WorkerView(NamedTuple):
    """A snapshot of one ready worker. KV is counted in tokens, always in whole blocks."""

    name: str
    #: `name|incarnation`, the worker's ZeroMQ identity.
    identity: str
    incarnation: str
    #: Two workers may exchange KV as it lies in memory only when their fingerprints are equal.
    fingerprint: str
    #: Where its KV plane listens.
    kv_address: str
    #: Tokens in one KV block.
    block_tokens: int
    #: Tokens of the longest sequence that its engine accepts.
    max_model_len: int
    #: KV tokens promised to requests, or held by requests of an earlier router.
    kv_tokens: int
    #: KV tokens that may be promised, already scaled by `kv_grant_max`.
    kv_tokens_max: int
    #: Requests that it has.
    requests: int
    #: Requests that it may have now.
    requests_max: int
    #: Prompt tokens that it was given to compute and has not computed yet.
    queued: int = 0
    #: Streams whose first token this decode worker has made.
    decoding: int = 0
    #: Serial number of the last placement that used this worker; 0 = none yet.
    last_placed_serial: int = 0
    #: KV bytes per token.
    kv_token_bytes: float = 0.0
    #: The named parts that the fingerprint was computed from.
    fingerprint_parts: Mapping[str, str] = {}
    #: The engine's KV cache groups; empty = one that keeps all tokens.
    kv_groups: tuple[KvGroup, ...] = ()
    #: Blocks of its store that others may pull; 0 = it neither gives nor gets any.
    pull_blocks: int = 0
    #: The LoRA adapters that it has, by id, each with the seconds that it takes to load it; 0 = it
    #: is in memory.
    adapters: Mapping[str, float] = {}
    #: Whether it is a mixed worker, which computes the prompts of its streams itself.
    mixed: bool = False
    #: As in `Capacity`, as are the next two.
    kv_meaning: str = ""
    kv_lossy_meaning: str = ""
    kv_element: str = ""
    #: As in `Speed`, as are the next two.
    prefill_speed: float = 1.0
    step_speed: float = 1.0
    patient: bool = False

    def may_give(self, taker: WorkerView) -> bool:
        """Whether it may hand the KV of prompts over to this worker."""
        return may_hand_over(self.fingerprint, self.kv_form, taker.fingerprint, taker.kv_form)

    @property
    def kv_form(self) -> KvForm:
        """As in `Capacity`."""
        return self.kv_meaning, self.kv_lossy_meaning, self.kv_element

    def has(self, adapter: str) -> bool:
        """Whether it can serve a request for this adapter, or for none."""
        return not adapter or adapter in self.adapters

    def suits(self, request: ResourceRequest) -> bool:
        """Whether it has the adapter of this request, and may be as slow as it is."""
        return self.has(request.adapter) and (request.patient or not self.patient)

    def load_seconds(self, adapter: str) -> float:
        """Before a request for this adapter can begin; 0 if it is in memory, or without one."""
        return self.adapters.get(adapter, 0.0) if adapter else 0.0

    def kv_need(self, tokens: int, *, computes: bool = False) -> int:
        """KV tokens, in whole blocks, that a sequence of so many tokens occupies. `computes`: its
        prompt is computed here. A decode worker is not asked that: what it needs for a while to
        compute a prompt itself, its engine waits for."""
        return kv_need(tokens, self.block_tokens, self.kv_groups, computes=computes)

    def is_one_block(self, prompt_tokens: int) -> bool:
        """Whether a prompt is computed sooner than handed over. A state says nothing of that: it is
        one block whatever the prompt."""
        return prompt_tokens <= self.block_tokens and not keeps_state(self.kv_groups)

    def kv_bytes(self, tokens: int, cached: int) -> float:
        """What a handoff of so many tokens moves to this worker, which has `cached` of them."""
        if not self.kv_groups:
            return (tokens - cached) * self.kv_token_bytes
        blocks = blocks_to_move(tokens, cached, self.kv_groups)
        return blocks * self.block_tokens * self.kv_token_bytes


Views = Sequence[WorkerView]


class Rates(NamedTuple):
    """Measured rates of the fleet for a prompt of this length. The defaults are priors of a small
    model on a CPU."""

    #: Prompt tokens that a prefill worker computes per second.
    prefill_tokens_per_s: float = 8_000.0
    #: Prompt tokens that a decode worker computes per second.
    local_tokens_per_s: float = 8_000.0
    #: KV bytes that a pair of workers moves per second, averaged over the fleet.
    kv_bytes_per_s: float = 5e8
    #: The same for one pair, by the names of P and D; None = use `kv_bytes_per_s` for all pairs.
    pair_bytes_per_s: Callable[[str, str], float] | None = None
    #: Seconds from the end of P's work, or of the transfer if later, to D's first token.
    handoff_s: float = 0.02
    #: Seconds of a decode step with one sequence.
    step_s: float = 0.01
    #: Seconds by which each further sequence lengthens a decode step.
    step_s_per_seq: float = 0.0005
    #: Predicted tokens of the answer; 0 = not known, `max_tokens` is assumed.
    out_tokens: float = 0.0
    #: Seconds that a pull takes beside the transfer.
    pull_s: float = 0.01
    #: KV bytes per second of a disk that was not measured yet.
    disk_bytes_per_s: float = 2e8
    #: Whether enough prefills and handoffs were measured to compare local with remote prefill.
    measured: bool = False


class StoredPrefix(NamedTuple):
    """A worker whose store has the beginning of a prompt."""

    name: str
    identity: str
    incarnation: str
    fingerprint: str
    kv_address: str
    #: How many leading tokens it has.
    tokens: int
    #: Of these, how many only its disk has.
    on_disk: int = 0
    #: KV bytes that its disk reads per second, as measured; 0 = nothing was read yet.
    disk_bytes_per_s: float = 0.0

    @property
    def medium(self) -> str:
        """Where what it has lies, for an operator."""
        return "disk" if self.on_disk else "store"


class PullChoice(NamedTuple):
    """A store out of which a worker gets the beginning of a prompt."""

    stored: StoredPrefix
    #: Tokens that the worker need not compute then.
    tokens: int
    #: Predicted seconds for these tokens.
    pull_s: float
    compute_s: float

    @property
    def gain_s(self) -> float:
        return self.compute_s - self.pull_s


class PlacementOptions(NamedTuple):
    """The operator's choices about remote prefill."""

    mode: Mode = "disaggregated"
    remote_prefill: RemotePrefill = "always"


class PlacementContext(NamedTuple):
    """One request, and what placement knows for it beside the snapshots."""

    request: ResourceRequest
    #: By worker identity, leading prompt tokens whose KV the worker has; absent = none.
    cached: Mapping[str, int] = {}
    #: The stores that have its beginning.
    stored: tuple[StoredPrefix, ...] = ()
    rates: Rates = Rates()
    options: PlacementOptions = PlacementOptions()
    #: Pairs (identity of P, identity of D) that must not hand KV over now.
    excluded_pairs: frozenset[tuple[str, str]] = frozenset()
    #: Whether D computes the prompt, whichever worker becomes D.
    local: bool = False
    #: The governor's last decision for a prompt of this size; None = it has not decided yet.
    was_remote: bool | None = None
    #: Whether a remote prefill of this size must be measured again.
    probe: bool = False


class Policy(Protocol):
    """A module in `policies/`; its functions are pure.

    Scores are given for all candidates at once, because one call for each would cost more than the
    scoring. Of equal scores, the worker that was placed on the longest time ago wins. A sentence
    explains why `view` was chosen among `candidates` workers.
    """

    NAME: str
    HELP: str

    def decode_scores(self, context: PlacementContext, views: Views) -> list[Score]: ...

    def prefill_scores(
        self, context: PlacementContext, views: Views, decode: WorkerView
    ) -> list[Score]: ...

    def decode_sentence(
        self, context: PlacementContext, view: WorkerView, candidates: int
    ) -> str: ...

    def prefill_sentence(
        self, context: PlacementContext, view: WorkerView, candidates: int
    ) -> str: ...


class WaitFor(enum.Enum):
    """What a request that cannot be placed now waits for."""

    WORKER = "a ready decode worker"
    SLOT = "a free decode slot"
    KV = "free KV blocks on a decode worker"
    PREFILL = "a free prefill worker"
    ADAPTER = "a decode worker that has its adapter"
    HEADROOM = "more room than is kept for higher classes"
    TRIAL = "a decode worker of its own, because workers died with its prompt"


class Candidate(NamedTuple):
    """One worker that could have been chosen."""

    role: str
    name: str
    score: Score


class Placement(NamedTuple):
    """The chosen workers, and why they were chosen."""

    decode: WorkerView
    #: None: D computes the prompt itself, for the reason in `sentence`.
    prefill: WorkerView | None
    #: Name of the policy that chose.
    policy: str
    #: The reasons, for an operator.
    sentence: str
    #: The best `CANDIDATES_MAX` workers of each role.
    candidates: tuple[Candidate, ...]
    #: Whether the governor compared local with remote prefill; False: only one was possible.
    compared: bool = False
    #: Out of which store the worker that computes the prompt gets its beginning; None: out of none.
    pull: PullChoice | None = None
    #: Whether the prompt begins before D has a slot for it (`ahead.py`).
    ahead: bool = False

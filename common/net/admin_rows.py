"""The rows of the admin verbs `workers`, `requests`, `kv`, `store` and `pairs`: the router makes
them, and its clients decode them. An instant is told as the time since.

Fields with a default came later; an answer of an older router lacks them.
"""

from __future__ import annotations

import msgspec

from common.blocks import KvGroup


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that the router knows, whether it is connected or not."""

    name: str
    role: str
    #: Its state, as `docs/states.md` names them; also `drained`, `down`, `switching` and
    #: `warm`, and `refused` of one whose model has no place here, which has no load.
    state: str
    #: Why it is in its state; empty = it needs no reason.
    reason: str
    #: What its host's health daemon has against it, `degraded` or `down`, and why; empty = nothing.
    verdict: str = ""
    verdict_reason: str = ""
    #: Since when it is in its state, and when its last message arrived.
    since_s: float
    seen_ms: float
    #: Requests that it has, and may have.
    requests: int
    requests_max: int
    #: Prompt tokens that it was given to compute and has not computed yet.
    queued_tokens: int
    #: Blocks of prompts that the router believes it has cached.
    prefix_hashes: int = 0
    #: Blocks in the memory of its store, and on the disk below, that the router knows.
    stored_hashes: int = 0
    disk_hashes: int = 0
    #: Workers of the other role with which it exchanges no KV now.
    not_paired_with: tuple[str, ...] = ()
    #: Why it has the fingerprint of no worker of the other role; empty = one has it, or there is
    #: none.
    unlike: str = ""
    #: KV tokens promised to requests, held from before this router's time, and at most promised.
    kv_tokens_promised: int
    kv_tokens_foreign: int
    kv_tokens_max: int
    #: Its own report: share of its KV in use, requests that run and wait, age of its last step.
    kv_used: float
    running: int
    waiting: int
    step_age_ms: float
    #: What its engine can hold.
    block_tokens: int
    kv_blocks: int
    kv_block_bytes: int
    #: Its KV cache groups, which share the blocks; empty = one that keeps all tokens.
    kv_groups: tuple[KvGroup, ...] = ()
    max_model_len: int
    model: str
    #: Only workers of one fingerprint exchange KV; the parts from which it was computed.
    fingerprint: str
    fingerprint_parts: dict[str, str] = {}
    #: Where its KV plane listens.
    kv_address: str
    incarnation: str
    pid: int
    #: Of a warm worker, how long it took to wake last; 0 = it never did, or never sleeps.
    wake_ms: float = 0.0
    #: The role of its table in the fleet file; empty = it cannot change its role.
    configured_role: str = ""
    #: Since when it has its role, and how often it has changed it.
    role_since_s: float = 0.0
    role_epoch: int = 0
    #: The role that it takes once it holds nothing; empty = it keeps its own.
    becomes: str = ""
    #: What it computed in the last 10 s: tokens per second in each phase, sequences in a batch,
    #: handoffs in flight; how busy its GPUs and their memory are, 0 to 1, -1 = nothing can tell.
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    batch: float = 0.0
    handoffs: int = 0
    gpu_busy: float = -1.0
    gpu_memory_busy: float = -1.0
    #: In the last 10 s: the share of drafted tokens that the model accepted, -1 = none were
    #: drafted; and tokens that a sequence got in one step, in the mean.
    accepted: float = -1.0
    tokens_per_output: float = 0.0


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that is queued or running."""

    request_id: str
    attempt: int
    #: Name of the model that it asks for.
    model: str = ""
    state: str
    tenant: str
    key_id: str
    #: Its class in the queue.
    priority: str
    #: Since its arrival.
    age_ms: float
    prompt_tokens: int
    max_tokens: int
    #: Names of its workers; empty = none.
    prefill: str
    decode: str
    gateway: str
    #: What it lacked when placement last looked at it; empty = nothing, or nobody looked.
    waits_for: str
    #: That it is to leave its decode worker, or which one it left, and why; empty = neither.
    move: str = ""
    #: The worker whose store gets copies of its blocks, and how many full blocks that lacks; empty
    #: = none does.
    copies: str = ""


class QueuedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that is queued, in the order in which they would be served."""

    request_id: str
    attempt: int
    #: Name of the model that it asks for; the requests of one model follow each other.
    model: str = ""
    priority: str = msgspec.field(name="class")
    tenant: str
    key_id: str
    waited_ms: float
    #: Until its first token would come too late; None = it may wait as long as it likes.
    start_within_ms: float | None
    prompt_tokens: int
    #: Predicted tokens of the answer, and the predicted cost of the whole.
    output_tokens: int
    cost: float
    #: How many later attempts were placed before it.
    passed_by: int
    waits_for: str


class HoldRow(msgspec.Struct, frozen=True, kw_only=True):
    """KV that one worker holds for another."""

    #: Name of the worker that holds it, whether it sends or receives it, and the other worker.
    owner: str
    side: str
    peer: str
    request_id: str
    attempt: int
    #: State of its request, or `moving` (kept for its next attempt), `over` or `unknown`.
    state: str
    #: Whether its request is over for longer than reports take.
    orphan: bool
    blocks: int
    bytes: int
    lease_left_ms: float
    age_ms: float


class KvWorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's KV plane counted."""

    name: str
    role: str
    #: How many holds it has, whether listed or not.
    holds: int
    #: By the names of `KvCounts`; empty = it reported none.
    counts: dict[str, int]


class KvLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `kv`."""

    #: The oldest first.
    holds: tuple[HoldRow, ...]
    #: Of all workers: holds and their bytes, and how many are orphans.
    holds_total: int
    bytes_total: int
    orphans: int
    workers: tuple[KvWorkerRow, ...]


class AdapterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter on one worker."""

    adapter: str
    #: Name of its base.
    model: str
    worker: str
    role: str
    #: `in memory`; `loaded`: the next request brings it back to memory; `failed`; or `waiting` for
    #: the worker to carry out an order.
    state: str
    #: Of its files; empty unless it can be served.
    digest: str
    #: What loading it took last; 0 while it was not loaded.
    load_ms: float
    path: str
    #: Why it cannot be served, else empty.
    error: str


class StoreRow(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of a worker's store. What it counts are blocks, since the worker started."""

    worker: str
    role: str
    #: `ram` or `disk`.
    tier: str
    #: `on`, or `failed`: the disk could not be used, and is not until the worker restarts.
    state: str
    #: Held now, and at most.
    blocks: int
    blocks_max: int
    bytes: int
    bytes_max: int
    #: Copied to it, and got out of it for a prompt.
    written: int
    hits: int
    #: Dropped for want of room, because unused, and because found damaged.
    evicted: int
    expired: int
    damaged: int
    #: Not copied to it, because they were overwritten before their turn.
    skipped: int
    #: How long a block is kept that nobody uses.
    ttl_s: int
    #: Kept in memory by an operator.
    pinned: int = 0


class StoreOrderRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker or pool was ordered to do with blocks of its store."""

    worker: str
    role: str
    #: `pin`, `unpin` or `drop`.
    action: str
    #: So many of the blocks that were meant are known to be there.
    blocks: int
    #: So many blocks were meant.
    wanted: int


class PairRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one prefill worker handed to one decode worker."""

    prefill: str
    decode: str
    #: State of the pair's circuit breaker.
    state: str
    #: Since when the decode worker has no connection to the prefill worker; None = it has one.
    unreachable_s: float | None = None
    handoffs: int
    bytes: int
    #: Milliseconds from the first data of a handoff to its last, summed.
    ms: float
    retries: int
    digest_mismatches: int
    failures: int
    bytes_per_s: float

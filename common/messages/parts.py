"""What messages are made of; see the package for the rules."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""What a router calculates with: neither infinite nor NaN, and no integer that a float cannot hold;
a frame with another value is refused where it is decoded."""


class Role(enum.StrEnum):
    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    HEALTH = "health"


class FinishReason(enum.StrEnum):
    """Why D ended a stream by itself. Stop strings are the gateway's: it aborts D and says
    `stop`."""

    STOP = "stop"
    LENGTH = "length"


class PriorityClass(enum.IntEnum):
    """Which queue a request waits in; a lower number is served first. Bounded by the key."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all tagged messages; the tag is the class name, the key of it `type`."""


class StructureKind(enum.StrEnum):
    """What `Structured.source` is written in; vLLM's own words."""

    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


class Structured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What every text must match. `source`: a JSON schema, a regex, a JSON array of choices, an
    EBNF grammar or a structural tag as JSON; empty for `json_object`."""

    kind: StructureKind
    source: str = ""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How D samples, in vLLM's terms. Stop strings are not here: the gateway scans text.

    `logprobs`, `prompt_logprobs`: how many of the likeliest to report beside the token itself.
    `reasoning_ended`, `reasoning_kwargs`: for an engine with a reasoning parser, whether the prompt
    already ends the reasoning (so that a structure applies at once), and the parser's arguments."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    thinking_token_budget: int | None = None
    structured: Structured | None = None
    reasoning_ended: bool | None = None
    reasoning_kwargs: dict[str, Any] | None = None


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request only engines read. `prompt_ids`: uint32 little endian, one per
    token; the last `emitted` of them are output of earlier attempts, which `sampling` counts no
    more (`max_tokens`, `min_tokens` are of the rest)."""

    prompt_ids: bytes
    sampling: Sampling
    cache_salt: str | None = None
    emitted: Count = 0


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one API key may use over all gateways; 0 = no limit. `weight`: its tenant's share of a
    contended fleet, relative to others."""

    requests_per_min: Number = 0.0
    tokens_per_min: Number = 0.0
    concurrency: Count = 0
    weight: Number = 1.0


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's engine can hold; fixed for an incarnation. `restores`: it goes on with what
    another worker began as that one would have (`common.resume`)."""

    block_tokens: Count
    kv_blocks: Count
    kv_block_bytes: Count
    max_model_len: Count
    max_num_seqs: Count
    restores: bool = False


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's engine holds now. `step_age_ms`: time since the engine last made a step while
    it had work, and on after that was taken from it until it shows that it lives; 0 when idle.
    `step_ms_p99`: of its latest steps, 0 while too few were made. `silent_ms`: time since it was
    asked for a sign of life, 0 when it gave one."""

    running: Count = 0
    waiting: Count = 0
    kv_used: Number = 0.0
    step_age_ms: Number = 0.0
    step_ms_p99: Number = 0.0
    silent_ms: Number = 0.0


class KvUnreachable(msgspec.Struct, frozen=True, kw_only=True):
    """D: a prefill worker that it was introduced to, and that no connection stands to, though it is
    tried again and again."""

    prefill: str
    kv_address: str
    for_ms: Number


class Opinion(msgspec.Struct, frozen=True, kw_only=True):
    """What the health daemon of a worker's host has against it, as one sentence. `down`: it should
    get nothing new; otherwise only what no other can take."""

    reason: str
    down: bool = False


class Held(msgspec.Struct, frozen=True, array_like=True):
    """One try as a worker holds it. `decode`, `prefill`, `gateway`: identities
    (`name|incarnation`), `prefill` empty when none has a part in it, `gateway` empty when a prefill
    worker says it. `started`: D has made its first token; P has computed the prompt."""

    request_id: str
    attempt: Count
    prompt_tokens: Count
    max_tokens: Count
    decode: str
    prefill: str = ""
    gateway: str = ""
    started: bool = False


class Leg(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a request's way, as its gateway saw it. `name`: `intake` (head complete until
    submitted), `held` (no router answered), `queue`, `placed` (until the first token), `decode`,
    `recovery` (from the last token of a lost worker until submitted anew)."""

    name: str
    attempt: int
    ms: float


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """The right to take one request's KV from P once. Made by the router, sent to P and D together.

    `secret`: 16 random bytes, single use. `kv_address`: `host:port` of P's UCX listener,
    of each tensor parallel rank in order, with commas between.
    `lease_ms`: how long P may hold blocks for it, counted on P from arrival. P and D each refuse a
    ticket whose fingerprint or incarnation is not their own.
    """

    secret: bytes
    request_id: str
    attempt: int
    fingerprint: str
    prefill: str
    prefill_incarnation: str
    decode: str
    decode_incarnation: str
    kv_address: str
    lease_ms: float


class KvReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one handoff moved, measured on D. `payload_bytes` counts KV only, `wire_bytes` headers
    too. `wait_ms`: KvReady sent to first data; `transfer_ms`: first to last data verified.
    `early_bytes`: payload whose sending had completed when P's prefill ended (the overlap).
    `retries`: all tries after the first, `refetches` of them after damage. `digest_mismatches`:
    messages that were not what was asked. `compression`: `fp8` if any message came so; then
    `payload_bytes` is what travelled, and `raw_bytes` the KV itself. `complete`: all that D wanted
    came and was verified; else `blocks` is the verified part, and D computed the rest itself."""

    blocks: Count = 0
    complete: bool = False
    messages: Count = 0
    payload_bytes: Count = 0
    wire_bytes: Count = 0
    wait_ms: Number = 0.0
    transfer_ms: Number = 0.0
    retries: Count = 0
    refetches: Count = 0
    digest_mismatches: Count = 0
    early_bytes: Count = 0
    compression: str = ""
    raw_bytes: Count = 0


class KvCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's KV plane has counted since its engine started. `_in`: taken here (D), `_out`:
    handed over from here (P). `early_bytes_out`: payload sent before its prefill had ended.
    `recomputes`: receives that failed, so that the engine computes the prompt itself. `aborts`:
    handoffs that were given up by a client, a daemon or the other side. `tickets_refused`: requests
    for KV that P refused. `stale`: messages of an older transfer, incarnation or generation, and
    duplicates, dropped without effect."""

    handoffs_in: Count = 0
    handoffs_out: Count = 0
    bytes_in: Count = 0
    bytes_out: Count = 0
    early_bytes_out: Count = 0
    retries: Count = 0
    refetches: Count = 0
    digest_mismatches: Count = 0
    recomputes: Count = 0
    leases_expired: Count = 0
    aborts: Count = 0
    tickets_refused: Count = 0
    stale: Count = 0


class KvHold(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of this worker that wait for another one. `side`: `send` (P holds them for D) or
    `receive` (D holds them for what P sends). `bytes`: of KV, all layers. `lease_left_ms`: until
    they are freed by themselves (on D: until the load timeout)."""

    request_id: str
    attempt: Count
    peer: str
    side: str
    blocks: Count
    bytes: Count
    lease_left_ms: Number
    age_ms: Number

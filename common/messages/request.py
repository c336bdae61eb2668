"""What a request asks of the engines, and what its API key allows; see the package for the
rules."""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from common.messages.parts import Count, Number


class StructureKind(enum.StrEnum):
    """The language of `Structured.source`, by vLLM's names."""

    JSON = "json"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    STRUCTURAL_TAG = "structural_tag"


class Structured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A structure that the text must match."""

    kind: StructureKind
    #: A JSON schema, a regex, a JSON array of choices, an EBNF grammar or a structural tag as JSON;
    #: empty for `json_object`.
    source: str = ""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How D samples, in vLLM's terms. Fields without a comment are vLLM's sampling parameters of
    that name. Stop strings are not here, because the gateway matches them in the text."""

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
    #: How many of the likeliest tokens are reported beside each generated one; None reports none.
    logprobs: int | None = None
    #: The same for each token of the prompt.
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    thinking_token_budget: int | None = None
    structured: Structured | None = None
    #: For an engine with a reasoning parser: whether the prompt already ends the reasoning, so that
    #: a structure applies at once.
    reasoning_ended: bool | None = None
    #: Arguments of the reasoning parser.
    reasoning_kwargs: dict[str, Any] | None = None


class ImageFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a prompt, processed: what the model's encoder takes, and where it belongs."""

    #: vLLM's name of what the model takes images as.
    modality: str = "image"
    #: Hex digest of `data`. It names the image in prefix hashes and in the engines' caches.
    digest: str
    #: Index of the first of its tokens in the prompt, and how many there are.
    offset: Count
    length: Count
    #: One byte for each of its tokens, 1 where the encoder fills it; empty: it fills all.
    filled: bytes = b""
    #: Tensors in vLLM's encoding (`common.engine.vllm.images`).
    data: bytes


class Pooling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pooling model computes of a prompt, in vLLM's terms."""

    #: `embed` makes a vector, `classify` one number for each label.
    task: Literal["embed", "classify"]
    #: How many numbers of the vector are wanted; None: all.
    dimensions: Count | None = None
    #: Whether the vector is normalized, or the numbers are probabilities; None: the model's own.
    use_activation: bool | None = None
    #: Index of the first token of the second of two texts, for models that tell them apart.
    second_text_at: Count | None = None


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request that only engines read."""

    #: Token ids of the prompt, uint32 little endian (`common.net.wire.pack_ids`).
    prompt_ids: bytes
    #: Parameters for the tokens that are still to be generated.
    sampling: Sampling
    #: Separates the cached prompts of tenants.
    cache_salt: str | None = None
    #: How many of the last prompt tokens are output of earlier attempts. `sampling.max_tokens` and
    #: `min_tokens` do not count them.
    emitted: Count = 0
    #: By their offsets, ascending. P and D get them alike: D needs their shapes in any case, and
    #: their pixels when a handoff fails.
    images: tuple[ImageFeatures, ...] = ()
    #: Id of the LoRA adapter (`common.model.adapters`); empty: the model alone.
    adapter: str = ""
    #: For a pooling model, which generates nothing: `sampling.max_tokens` is 0. None: for others.
    pooling: Pooling | None = None


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one API key may use over all gateways."""

    #: Requests per minute; 0 sets no limit.
    requests_per_min: Number = 0.0
    #: Tokens per minute, in the cost that admission counts in; 0 sets no limit.
    tokens_per_min: Number = 0.0
    #: Requests at once; 0 sets no limit.
    concurrency: Count = 0
    #: Share of the tenant in a contended fleet, relative to other tenants.
    weight: Number = 1.0
    #: MiB of KV that one of its requests is promised at a time; 0 is that of its class.
    kv_budget_mib: Number = 0.0


class OtherCell(msgspec.Struct, frozen=True, kw_only=True):
    """What an API key does in the other one of the two cells that may serve it, as far as this
    gateway knows, so that its limits hold over both."""

    #: Whether that one is its tenant's own and serves it, so that this one adds no more than a
    #: small share of its limits.
    serves: bool = False
    #: Milliseconds since its requests went there instead; None: they did not.
    left_ms: Number | None = None
    #: Its requests that still run there.
    live: Count = 0

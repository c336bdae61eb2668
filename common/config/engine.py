"""`[engine]` and `[engine.sim]`: the engine of a worker. `[prefill.NAME.engine]` and
`[decode.NAME.engine]` override single keys for one worker. `[speculation]`: how decode workers
draft tokens; `[decode.NAME.speculation]` overrides single keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from common.config.base import Count, Milliseconds, Positive, Section


class SimConfig(Section, frozen=True):
    """Timing of the simulated engine, which models time and computes no tokens.

    A prefill of n tokens takes n / `prefill_tokens_per_s`. A decode step takes `decode_step_ms` and
    `decode_step_ms_per_seq` for each sequence of the batch."""

    prefill_tokens_per_s: Positive = 20_000.0
    """Prompt tokens computed per second."""
    decode_step_ms: Milliseconds = 10.0
    """Duration of a decode step, whatever its batch."""
    decode_step_ms_per_seq: Milliseconds = 0.0
    """Duration that each sequence of the batch adds to a decode step."""
    kv_blocks: Count = 2048
    """KV blocks of the engine."""
    kv_block_bytes: Count = 65_536
    """Bytes of one KV block over all layers; they are really transferred."""


class EngineConfig(Section, frozen=True):
    """The engine that computes tokens, one per worker."""

    kind: Literal["vllm", "sim"] = "vllm"
    """Engine: vLLM, or the simulated engine for tests without a model."""
    block_tokens: Annotated[int, Meta(ge=0)] = 0
    """Tokens of one KV block; 0 leaves it to the engine (128 on CPU)."""
    dtype: Literal["", "float32", "bfloat16", "float16"] = ""
    """Element type in which this worker computes and keeps KV; empty is `[model] dtype`. Decode
    workers of a model must have the same. Prefill and decode workers of different types need
    `[kv] compression`, and are not `exact`: KV is converted on its way."""
    kv_cache_mib: Annotated[int, Meta(ge=0)] = 0
    """MiB of KV cache; 0 leaves it to the engine."""
    max_num_seqs: Count = 64
    """Sequences in one batch, which is also the number of requests that a worker is given."""
    max_num_batched_tokens: Count = 2048
    """Tokens that one step computes at most; longer prompts are computed in chunks."""
    threads: Annotated[int, Meta(ge=0)] = 0
    """OpenMP threads; 0 shares the cores evenly between the workers of the file."""
    prefix_caching: bool = True
    """Whether the engine keeps the KV of prompts for requests that begin alike."""
    kv_events: bool = True
    """Whether the engine reports what its prefix cache holds, so that the router need not guess."""
    hang_ms: Positive = 60_000.0
    """Time without a step after which an engine that has work counts as dead, if it is also longer
    than 20 of its p99 steps. Its daemon ends and is started anew."""
    args: dict[str, Any] = field(default_factory=dict)
    """Further engine arguments of vLLM by name, such as `tensor_parallel_size`. Which ones work is
    at the end of this page; those that cannot are refused when the file is read."""
    sim: SimConfig = SimConfig()

    @property
    def publishes_kv_events(self) -> bool:
        return self.kv_events and self.prefix_caching


class SpeculationConfig(Section, frozen=True):
    """Speculative decoding of decode workers: a drafter proposes tokens, and one step of the engine
    checks them all. The text stays the same. Prefill workers run without, unless `hand_over`."""

    method: Literal["none", "ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp"] = "none"
    """Who drafts: `ngram` continues what came before in the same text, without a model. `suffix` is
    alike and needs the package arctic-inference. `draft_model` is a small model with the same
    vocabulary. `eagle` and `eagle3` are heads made for this model, which read its hidden states.
    `mtp` are such heads among the weights of the model itself."""
    tokens: Annotated[int, Meta(ge=1, le=16)] = 4
    """Tokens of a draft at most."""
    drafter: str = ""
    """Folder of the draft model or of the EAGLE head; the other methods have none."""
    hand_over: bool = False
    """Whether prefill workers run the drafter over prompts, too, and hand its KV over. They take
    this section then. Without it, and after a handoff from a worker that has not the same drafter,
    the drafter does not have the prompt, and its drafts are poor."""
    ngram_min: Annotated[int, Meta(ge=1)] = 2
    """Least number of last tokens that `ngram` must find earlier in the text."""
    ngram_max: Annotated[int, Meta(ge=1, le=64)] = 5
    """Most tokens that it looks for."""
    batch_max: Annotated[int, Meta(ge=0)] = 0
    """Requests in a step up to which tokens are drafted; in larger steps none are, because there
    checking costs more than it saves. 0 drafts in all."""

    @property
    def step_tokens(self) -> int:
        """Tokens that one step of the engine makes of a sequence at most."""
        return 1 if self.method == "none" else self.tokens + 1

    @property
    def drafter_has_folder(self) -> bool:
        """Whether the drafter's weights lie apart from the model's."""
        return self.method in ("draft_model", "eagle", "eagle3")

    @property
    def drafter_has_kv(self) -> bool:
        """Whether the drafter has layers in the KV cache."""
        return self.drafter_has_folder or self.method == "mtp"

    @property
    def cold_after(self) -> Literal["none", "all", "canonical"]:
        """After which handoffs the drafter lacks the prompt's KV."""
        if not self.drafter_has_kv:
            return "none"
        return "canonical" if self.hand_over else "all"

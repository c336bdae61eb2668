"""What vLLM gets of a prompt, and what its outputs say: how a request ended, of how many prompt
tokens the KV was there, and which drafts were accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.blocks import KvGroup
from common.engine.port import Drafts, EngineRequest
from common.errors import Code
from common.messages import FinishReason, Role

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.metrics.stats import PrefillStats, SchedulerStats


def prompt_counts(stats: PrefillStats | None, block_tokens: int) -> tuple[int, int, int]:
    """Cached, handed over and stored tokens of a prompt, in the first output of its request; zeros
    in others. vLLM counts what it stores of its own work only; of a prompt that was handed over,
    all whole blocks of `block_tokens` are stored, none if that is 0."""
    if stats is None:
        return 0, 0, 0
    cached, handed_over = stats.num_cached_tokens, stats.num_external_cached_tokens
    if not handed_over:
        return cached, 0, cached + stats.num_cache_creation_tokens
    whole = stats.num_prompt_tokens // block_tokens * block_tokens if block_tokens else 0
    return cached, handed_over, whole


def drafts_of(stats: SchedulerStats) -> Drafts | None:
    """Tokens that the step checked, and those that it accepted; None: there were no drafts."""
    made = stats.spec_decoding_stats
    if made is None:
        return None
    return Drafts(tuple(made.num_draft_tokens_per_pos), tuple(made.num_accepted_tokens_per_pos))


def ending(made: EngineCoreOutput, role: Role) -> tuple[str, str]:
    """Finish reason and error code, one of them empty."""
    from vllm.v1.engine import FinishReason as VllmFinish

    if made.finish_reason in (VllmFinish.ABORT, VllmFinish.ERROR):
        return "", Code.ENGINE_FAILED
    if role is Role.PREFILL or made.finish_reason == VllmFinish.LENGTH:
        return FinishReason.LENGTH, ""
    return FinishReason.STOP, ""


def ids_to_compute(request: EngineRequest, groups: Sequence[KvGroup]) -> list[int]:
    """The prompt as the engine gets it. Where `groups` are told, P leaves the last token to D. A
    prompt must have one token."""
    ids = list(request.prompt_ids)
    return ids[:-1] if groups and request.role is Role.PREFILL and len(ids) > 1 else ids

"""Local or remote prefill, decided per request.

A remote prefill pays only if D need not compute most of the prompt. vLLM recomputes the last prompt
token on D whatever arrives, and KV travels in whole blocks, so a prompt that fits into one block is
computed sooner on D than it is handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.router.placement_types import Ask, WorkerView


class Verdict(NamedTuple):
    """`eligible`: prefill workers that may ever take this prompt for this D; empty = local, and
    `sentence` says why."""

    eligible: tuple[WorkerView, ...]
    sentence: str


def decide(ask: Ask, decode: WorkerView, prefills: Sequence[WorkerView]) -> Verdict:
    """Looks at what is possible and worthwhile, not at who is busy now."""
    if ask.prompt_tokens <= decode.block_tokens:
        return Verdict(
            (),
            f"local prefill: {ask.prompt_tokens} prompt tokens are at most one KV block "
            f"of {decode.block_tokens}, which is computed sooner than handed over",
        )
    if not prefills:
        return Verdict((), "local prefill: no prefill worker is ready")
    matching = [view for view in prefills if view.fingerprint == decode.fingerprint]
    if not matching:
        return Verdict(
            (), f"local prefill: no ready prefill worker has the fingerprint of {decode.name}"
        )
    able = tuple(view for view in matching if _can_ever_hold(ask, view))
    if not able:
        return Verdict(
            (),
            f"local prefill: {ask.prompt_tokens} prompt tokens are more than any ready prefill "
            "worker can hold",
        )
    return Verdict(able, "")


def _can_ever_hold(ask: Ask, view: WorkerView) -> bool:
    fits = view.kv_need(ask.prompt_tokens) <= view.kv_tokens_max
    return fits and ask.prompt_tokens < view.max_model_len

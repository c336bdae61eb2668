"""The bodies of answers that do not stream, and of errors."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from common.errors import BatonError
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.streams.answer import Ending, Usage
from services.gateway.streams.phase_timer import PhaseTimer

MESSAGE_NULLS = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
CHOICE_NULLS = dict.fromkeys(("logprobs", "token_ids", "routed_experts"))
COMPLETION_CHOICE_NULLS = dict.fromkeys(("prompt_logprobs", "prompt_token_ids"))
NULLS = dict.fromkeys(
    ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
)
CHAT_NULLS = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))


def error_body(error: BatonError) -> bytes:
    return msgspec.json.encode({"error": error_object(error)})


def error_object(error: BatonError) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.http.openai_type,
        "param": error.param,
        "code": error.code.value,
    }


def retry_after_seconds(error: BatonError) -> int | None:
    """Full seconds, rounded up, at least 1; None where trying again later does not help by
    itself."""
    if error.http.status not in (429, 503):
        return None
    return max(1, math.ceil((error.retry_after_ms or 0) / 1000))


def usage_object(usage: Usage, kind: Kind) -> dict[str, Any]:
    """`created_cache_tokens` is vLLM's field, which it has in chats only."""
    details = {"cached_tokens": usage.cached}
    if kind is Kind.CHAT:
        details["created_cache_tokens"] = usage.stored
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": details,
    }


def timings_object(timer: PhaseTimer, usage: Usage, now: float) -> dict[str, float]:
    """What `x-timings` asks for. The first four times sum to `total_ms`. The names are those of
    llama.cpp's server where it measures the same: `prompt_n` tokens were computed and `cache_n`
    taken from a cache in `prompt_ms`; `predicted_n` tokens were made, and `predicted_ms` passed
    from the first of them to the last."""
    phases = timer.client_phases(now)
    names = {
        "intake": "intake_ms",
        "queue": "queue_ms",
        "prefill": "prompt_ms",
        "decode": "predicted_ms",
    }
    times = {ours: round(phases.get(name, 0.0), 3) for name, ours in names.items()}
    times["total_ms"] = round(sum(times.values()), 3)
    computed, further = usage.prompt - usage.cached, max(0, usage.completion - 1)
    return times | {
        "prompt_n": computed,
        "cache_n": usage.cached,
        "predicted_n": usage.completion,
        "prompt_per_second": _rate(computed, times["prompt_ms"]),
        "predicted_per_second": _rate(further, times["predicted_ms"]),
    }


def _rate(count: int, ms: float) -> float:
    return round(count / ms * 1000, 3) if ms else 0.0


def answer_body(
    spec: RequestSpec, text: str, token_ids: list[int], ending: Ending, now: float
) -> bytes:
    """A `chat.completion` or `text_completion`, with all fields of vLLM's: clients read those that
    are null, too. `now`: when the answer is complete, of the request's timer."""
    chat = spec.kind is Kind.CHAT
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["message"] = {"role": "assistant", "content": text} | MESSAGE_NULLS
    else:
        choice["text"] = text
    choice |= {"finish_reason": ending.reason, "stop_reason": ending.stop_reason}
    choice |= CHOICE_NULLS if chat else CHOICE_NULLS | COMPLETION_CHOICE_NULLS
    body: dict[str, Any] = NULLS | (CHAT_NULLS if chat else {})
    body |= {
        "id": spec.response_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": spec.created,
        "model": spec.asked_as,
        "choices": [choice],
        "usage": usage_object(ending.usage, spec.kind),
    }
    if spec.timings and spec.timer is not None:
        body["timings"] = timings_object(spec.timer, ending.usage, now)
    if spec.return_token_ids:
        choice["token_ids"] = token_ids
        (body if chat else choice)["prompt_token_ids"] = spec.prompt_ids
    return msgspec.json.encode(body)


def models_body(
    name: str, root: str, created: int, max_model_len: int | None, parent: str | None = None
) -> dict[str, Any]:
    """One entry of /v1/models. `root`, `parent` and `max_model_len` are vLLM's fields; its
    benchmark takes the tokenizer from `root`. `parent`: of an adapter, the name of its base."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "baton",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
    }

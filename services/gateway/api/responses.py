"""The bodies of answers that do not stream, and of errors."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from common.errors import BatonError
from services.gateway.api.kinds import Call, Kind
from services.gateway.streams.answer import Ending, Usage
from services.gateway.streams.timing import Timing


def error_body(error: BatonError) -> bytes:
    return msgspec.json.encode({"error": error_object(error)})


def error_object(error: BatonError) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": error.face.openai_type,
        "param": error.param,
        "code": error.code.value,
    }


def retry_after_seconds(error: BatonError) -> int | None:
    """Whole seconds, rounded up, at least 1; None where a later try will not help by itself."""
    if error.face.http_status not in (429, 503):
        return None
    return max(1, math.ceil((error.retry_after_ms or 0) / 1000))


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def timings_object(timing: Timing, usage: Usage) -> dict[str, float]:
    """`x-timings`. The first four sum to `total_ms`. Names as llama.cpp's server has them where it
    has the same: `prompt_n` tokens computed and `cache_n` taken from a cache in `prompt_ms`,
    `predicted_n` made, `predicted_ms` from the first to the last of them."""
    phases = timing.phases()
    names = {
        "intake": "intake_ms",
        "queue": "queue_ms",
        "prefill": "prompt_ms",
        "decode": "predicted_ms",
    }
    told = {ours: round(phases.get(name, 0.0), 3) for name, ours in names.items()}
    told["total_ms"] = round(sum(told.values()), 3)
    computed, further = usage.prompt - usage.cached, max(0, usage.completion - 1)
    return told | {
        "prompt_n": computed,
        "cache_n": usage.cached,
        "predicted_n": usage.completion,
        "prompt_per_second": _rate(computed, told["prompt_ms"]),
        "predicted_per_second": _rate(further, told["predicted_ms"]),
    }


def _rate(count: int, ms: float) -> float:
    return round(count / ms * 1000, 3) if ms else 0.0


def whole_answer(call: Call, text: str, token_ids: list[int], ending: Ending) -> bytes:
    """`chat.completion` or `text_completion`. `stop_reason` and the token ids are vLLM's fields."""
    choice: dict[str, Any] = {"index": 0}
    if call.kind is Kind.CHAT:
        choice["message"] = {"role": "assistant", "content": text, "refusal": None}
    else:
        choice["text"] = text
    choice |= {
        "logprobs": None,
        "finish_reason": ending.reason,
        "stop_reason": ending.stop_reason,
    }
    body: dict[str, Any] = {
        "id": call.response_id,
        "object": "chat.completion" if call.kind is Kind.CHAT else "text_completion",
        "created": call.created,
        "model": call.model,
        "choices": [choice],
        "usage": usage_object(ending.usage),
    }
    if call.timings:
        body["timings"] = timings_object(call.timing, ending.usage)
    if call.return_token_ids:
        choice["token_ids"] = token_ids
        (body if call.kind is Kind.CHAT else choice)["prompt_token_ids"] = call.prompt_ids
    return msgspec.json.encode(body)


def models_body(name: str, root: str, created: int, max_model_len: int | None) -> dict[str, Any]:
    """One entry of /v1/models. `root` and `max_model_len` are vLLM's fields; its benchmark takes
    the tokenizer from `root`."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "baton",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
    }

"""From vLLM's checked `SamplingParams` to the `Sampling` of our wire.

Parameters that the wire does not have are refused by name, and lists that would not fit into a
frame with their size.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from common.errors import BatonError, Code
from common.messages import Sampling, Structured, StructureKind

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine import EngineCoreRequest

IDS_MAX = 16_384
#: Positions x (logprobs + 1): each takes up to 14 bytes, and all are in one message.
PROMPT_LOGPROBS_MAX = 32_768


def to_sampling(request: EngineCoreRequest) -> Sampling:
    """Of one request for tokens. Raises BatonError(INVALID_REQUEST | UNSUPPORTED_PARAMETER)."""
    params: SamplingParams = request.sampling_params
    _refuse_unsupported(params)
    _bound("allowed_token_ids", len(params.allowed_token_ids or ()), IDS_MAX)
    _bound("logit_bias", len(params.logit_bias or ()), IDS_MAX)
    if params.prompt_logprobs is not None:
        entries = len(request.prompt_token_ids or ()) * (params.prompt_logprobs + 1)
        _bound("prompt_logprobs x prompt tokens", entries, PROMPT_LOGPROBS_MAX)
    structured = params.structured_outputs
    return Sampling(
        max_tokens=params.max_tokens or 1,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=max(0, params.top_k),
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.seed,
        ignore_eos=params.ignore_eos,
        stop_token_ids=tuple(params.stop_token_ids or ()),
        logit_bias=params.logit_bias or None,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        logprob_token_ids=_tuple(params.logprob_token_ids),
        allowed_token_ids=_tuple(params.allowed_token_ids),
        bad_words=tuple(params.bad_words or ()),
        thinking_token_budget=params.thinking_token_budget,
        structured=structured_of(structured) if structured is not None else None,
        reasoning_ended=request.reasoning_ended,
        reasoning_kwargs=request.reasoning_parser_kwargs,
    )


def _refuse_unsupported(params: SamplingParams) -> None:
    given = {
        "repetition_detection": params.repetition_detection is not None,
        "prompt_logprob_token_ids": params.prompt_logprob_token_ids is not None,
        "extra_args": bool(params.extra_args),
        "logprobs = -1": params.logprobs == -1,
        "prompt_logprobs = -1": params.prompt_logprobs == -1,
    }
    for name, is_given in given.items():
        if is_given:
            sentence = f"{name!r} is not supported by this server"
            raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param=name.split(" ")[0])


def structured_of(params: StructuredOutputsParams) -> Structured:
    """Raises BatonError(INVALID_REQUEST)."""
    given: dict[StructureKind, Any] = {
        StructureKind.JSON: params.json,
        StructureKind.REGEX: params.regex,
        StructureKind.CHOICE: params.choice,
        StructureKind.GRAMMAR: params.grammar,
        StructureKind.JSON_OBJECT: params.json_object,
        StructureKind.STRUCTURAL_TAG: params.structural_tag,
    }
    kind, value = next((kind, value) for kind, value in given.items() if value is not None)
    if value is False:
        sentence = "structured_outputs: json_object may only be true; leave it out otherwise"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="structured_outputs")
    source = value if isinstance(value, str) else json.dumps(value)
    return Structured(
        kind=kind,
        source="" if kind is StructureKind.JSON_OBJECT else source,
        disable_any_whitespace=params.disable_any_whitespace,
        disable_additional_properties=params.disable_additional_properties,
        whitespace_pattern=params.whitespace_pattern,
    )


def _bound(what: str, size: int, limit: int) -> None:
    if size > limit:
        param = what.split(" ", 1)[0]
        raise BatonError(Code.INVALID_REQUEST, f"{what}: {size}, at most {limit}", param=param)


def _tuple(ids: list[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)

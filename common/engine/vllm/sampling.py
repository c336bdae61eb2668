"""Translates sampling parameters into vLLM's `SamplingParams`, and vLLM's logprobs into ours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypedDict

from common.engine.connector.metadata import holder_params, source_params, to_params
from common.engine.port import EngineRequest
from common.errors import BatonError, Code
from common.messages import (
    Capacity,
    Pooling,
    Role,
    Sampling,
    Structured,
    StructureKind,
    TokenLogprobs,
)
from common.resume import lacking

if TYPE_CHECKING:
    from vllm import PoolingParams, SamplingParams
    from vllm.config import VllmConfig
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine import EngineCoreOutput

RESUME_KEY = "baton_resume"
SECOND_TEXT = "compressed_token_type_ids"
"""vLLM's name of what is `Pooling.second_text_at` here."""
NEUTRAL: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


class ResumeState(TypedDict, total=False):
    """What vLLM passes on to our own code in `extra_args[RESUME_KEY]`. Either all or none of the
    fields after the first are there, with the request's parameters for `ResumeSampler`."""

    #: How many of the last prompt tokens are output of earlier attempts.
    emitted: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float


def refuse_lost_state(request: EngineRequest, config: VllmConfig, capacity: Capacity) -> None:
    """Raises BatonError(INVALID_REQUEST) for a continued request whose sampling state this engine
    cannot restore. Our gateway sends none; a gateway of another version might."""
    if not request.emitted or request.role is not Role.DECODE:
        return
    sampling = request.sampling
    what = lacking(sampling, restores=capacity.restores)
    reasons = config.structured_outputs_config.reasoning_parser
    if not what and sampling.structured and reasons:
        what = "" if sampling.reasoning_ended else "where its reasoning ended"
    if what:
        sentence = f"this engine cannot go on after {request.emitted} tokens without {what}"
        raise BatonError(Code.INVALID_REQUEST, sentence)


def sampling_params(request: EngineRequest, *, resume_sampler: bool) -> SamplingParams:
    """`resume_sampler`: whether the engine has `ResumeSampler`. Raises ValueError for parameters
    that vLLM refuses."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    extra: dict[str, Any] = {}
    if request.ticket is not None:
        extra["kv_transfer_params"] = to_params(
            "send" if request.role is Role.PREFILL else "receive",
            request.ticket,
            len(request.prompt_ids) - 1,
            goes_on=request.emitted > 0,
        )
    named = source_params(request.source) if request.source is not None else {}
    if request.holder is not None:
        named |= holder_params(request.holder)
    if named:
        extra["kv_transfer_params"] = extra.get("kv_transfer_params", {}) | named
    if request.role is Role.PREFILL:
        return SamplingParams(
            max_tokens=1,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=extra,
        )
    asked = _asked(request.sampling)
    resume = _resume_state(request, SamplingParams(**asked)) if resume_sampler else None
    if resume is not None:
        extra[RESUME_KEY] = resume
        asked |= NEUTRAL if "temperature" in resume else {}
    return SamplingParams(
        **asked,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args=extra or None,
    )


def _resume_state(request: EngineRequest, asked: SamplingParams) -> ResumeState | None:
    """None for a request that vLLM's batch samples correctly. In `asked` vLLM's own limits are
    applied, such as the least temperature."""
    from vllm.sampling_params import SamplingType

    counts = asked.presence_penalty or asked.frequency_penalty or asked.bad_words
    seeded = asked.sampling_type is SamplingType.RANDOM_SEED
    if not seeded and not (request.emitted and counts):
        return ResumeState(emitted=request.emitted) if request.emitted else None
    return ResumeState(
        emitted=request.emitted,
        temperature=0.0 if asked.sampling_type is SamplingType.GREEDY else asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        seed=asked.seed if seeded else None,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
    )


def _asked(sampling: Sampling) -> dict[str, Any]:
    structured = sampling.structured
    return {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logit_bias": sampling.logit_bias,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.prompt_logprobs,
        "logprob_token_ids": _list(sampling.logprob_token_ids),
        "allowed_token_ids": _list(sampling.allowed_token_ids),
        "bad_words": list(sampling.bad_words),
        "thinking_token_budget": sampling.thinking_token_budget,
        "structured_outputs": structured_params(structured) if structured else None,
    }


def structured_params(structured: Structured) -> StructuredOutputsParams:
    """Raises ValueError if the source must be JSON and is not."""
    from vllm.sampling_params import StructuredOutputsParams

    source: Any = structured.source
    match structured.kind:
        case StructureKind.JSON_OBJECT:
            source = True
        case StructureKind.CHOICE:
            source = json.loads(source)
    return StructuredOutputsParams(
        **{structured.kind.value: source},
        disable_any_whitespace=structured.disable_any_whitespace,
        disable_additional_properties=structured.disable_additional_properties,
        whitespace_pattern=structured.whitespace_pattern,
    )


def pooling_params(pooling: Pooling) -> PoolingParams:
    """`InputProcessor` adds the model's defaults, and raises for what vLLM refuses."""
    from vllm import PoolingParams

    second = pooling.second_text_at
    return PoolingParams(
        task=pooling.task,
        dimensions=pooling.dimensions,
        use_activation=pooling.use_activation,
        extra_kwargs=None if second is None else {SECOND_TEXT: second},
    )


def pooled_of(made: EngineCoreOutput) -> bytes:
    """What was made of a prompt, as in `Delta`."""
    numbers = made.pooling_output.detach().float().cpu().reshape(-1).numpy()
    return bytes(numbers.astype("<f4", copy=False).tobytes())


def logprobs_of(made: EngineCoreOutput) -> list[TokenLogprobs] | None:
    """One entry for each new token; None if not asked for."""
    if made.new_logprobs is None:
        return None
    token_ids, logprobs, ranks, _ = made.new_logprobs
    return _rows(token_ids, logprobs, ranks)


def prompt_logprobs_of(made: EngineCoreOutput) -> list[TokenLogprobs] | None:
    """One entry for each prompt token from the second on, all at once when the prompt is computed;
    None otherwise."""
    if made.new_prompt_logprobs_tensors is None:
        return None
    token_ids, logprobs, ranks, *_ = made.new_prompt_logprobs_tensors
    return _rows(token_ids, logprobs, ranks)


def _rows(token_ids: Any, logprobs: Any, ranks: Any) -> list[TokenLogprobs]:
    """The arguments are arrays or tensors of equal length."""
    rows = zip(ranks.tolist(), token_ids.tolist(), logprobs.tolist(), strict=True)
    return [TokenLogprobs(rank, ids, values) for rank, ids, values in rows]


def _list(ids: tuple[int, ...] | None) -> list[int] | None:
    return None if ids is None else list(ids)

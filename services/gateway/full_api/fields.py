"""Which fields the full API honours, by route, and which it refuses by name.

vLLM's request models take any field. They ignore those that they do not know, and some that they
do. Here a field is honoured, or it is refused unless its value asks for nothing
(`api/fields.py`). A test compares these tables with the models of the pinned vLLM.
"""

from __future__ import annotations

from typing import Any

import msgspec

from common.errors import BatonError, Code
from services.gateway.api import fields
from services.gateway.api.fields import (
    ENGINE_FIELDS,
    MEDIA_FIELDS,
    STORAGE_FIELDS,
    NoOps,
    is_no_op,
)
from services.gateway.api.kinds import Kind
from services.gateway.api.parse import refuse, shortened
from services.gateway.api.routes import Route


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _names("""
    model frequency_penalty logit_bias n presence_penalty seed stop stream stream_options
    temperature top_p user top_k min_p repetition_penalty stop_token_ids ignore_eos
    min_tokens include_stop_str_in_output skip_special_tokens spaces_between_special_tokens
    max_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids
    allowed_token_ids bad_words echo add_special_tokens structured_outputs response_format
    priority logprobs return_tokens_as_token_ids return_token_ids return_token_offsets
    thinking_token_budget
""")
_CHAT = _names("""
    messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort
    include_reasoning parallel_tool_calls add_generation_prompt continue_final_message
    documents chat_template_kwargs return_prompt_text
""")
_RESPONSES = _names("""
    input instructions include max_output_tokens metadata model logit_bias
    parallel_tool_calls reasoning include_reasoning stream temperature text tool_choice
    tools top_logprobs top_p top_k min_p truncation user skip_special_tokens
    include_stop_str_in_output presence_penalty frequency_penalty priority
    previous_input_messages enable_response_messages structured_outputs repetition_penalty
    seed stop stop_token_ids ignore_eos chat_template_kwargs
""")
_COUNT = _names("""
    model messages output_config system thinking tool_choice tools chat_template_kwargs
""")
_MESSAGES = _COUNT | _names("""
    max_tokens metadata stop_sequences stream temperature top_k top_p
""")
_TOKENIZE = _names("""
    model prompt add_special_tokens return_token_strs messages add_generation_prompt
    continue_final_message chat_template_kwargs tools
""")

HONOURED: dict[Route, frozenset[str]] = {
    Route.CHAT: _SAMPLING | _CHAT,
    Route.COMPLETION: _SAMPLING | {"prompt"},
    Route.RESPONSES: _RESPONSES,
    Route.MESSAGES: _MESSAGES,
    Route.COUNT_TOKENS: _COUNT,
    Route.TOKENIZE: _TOKENIZE,
    Route.DETOKENIZE: frozenset({"model", "tokens"}),
}

_ENGINE = ENGINE_FIELDS | MEDIA_FIELDS | {"stream_interval": ()}

REFUSED: dict[Route, NoOps] = {
    Route.CHAT: _ENGINE | fields.REFUSED[Kind.CHAT],
    Route.COMPLETION: _ENGINE | fields.REFUSED[Kind.COMPLETION],
    Route.RESPONSES: _ENGINE
    | STORAGE_FIELDS
    | {"background": (False,), "previous_response_id": (), "prompt": (), "max_tool_calls": ()},
    Route.MESSAGES: _ENGINE | {"service_tier": ("auto", "standard_only")},
    Route.COUNT_TOKENS: {},
    Route.TOKENIZE: MEDIA_FIELDS | {"chat_template": ()},
    Route.DETOKENIZE: {},
}

MESSAGE_FIELDS = _names("""
    role content name tool_call_id tool_calls reasoning reasoning_content
""")
MESSAGE_NO_OPS: NoOps = {
    "refusal": (),
    "audio": (),
    "function_call": (),
    "annotations": ([],),
}

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def check_fields(route: Route, body: bytes) -> None:
    """Raises BatonError(INVALID_REQUEST | UNSUPPORTED_PARAMETER) with `param`."""
    try:
        given = _decode(body)
    except msgspec.ValidationError as error:
        sentence = "the request body must be a JSON object"
        raise BatonError(Code.INVALID_REQUEST, sentence) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatonError(
            Code.INVALID_REQUEST, f"the request body is not valid JSON: {error}"
        ) from error
    _check(given, HONOURED[route], REFUSED[route], "")
    if route in (Route.CHAT, Route.TOKENIZE):
        messages = given.get("messages")
        for at, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                _check(message, MESSAGE_FIELDS, MESSAGE_NO_OPS, f"messages[{at}].")


def _check(given: dict[str, Any], honoured: frozenset[str], refused: NoOps, path: str) -> None:
    for name, value in given.items():
        if name in honoured:
            continue
        param = path + shortened(name)
        if name not in refused:
            refuse(param, f"unknown parameter {param!r}")
        if not is_no_op(value, refused[name]):
            refuse(param, f"{param!r} is not supported by this server")

"""Which fields the full API honours, by route, and which it refuses by name.

vLLM's request models take any field. They ignore those that they do not know, and some that they
do. Here a field that would change the answer is honoured, or it is refused unless its value asks
for nothing (`api/fields.py`). The others are ignored and named. A test compares these tables with
the models of the pinned vLLM.
"""

from __future__ import annotations

from typing import Any

import msgspec

from common.errors import BatonError, Code
from services.gateway.api import fields
from services.gateway.api.fields import (
    ENGINE_FIELDS,
    MESSAGE_FIELDS,
    PROCESSOR_FIELDS,
    STREAM_OPTIONS,
    WITHOUT_EFFECT,
    NoOps,
    is_no_op,
    names,
)
from services.gateway.api.ignored import IgnoredFields
from services.gateway.api.intake import hinted_session
from services.gateway.api.kinds import Kind
from services.gateway.api.parse import check_bias_keys, refuse
from services.gateway.api.routes import RERANKS, SCORES, Route

_SAMPLING = names("""
    model frequency_penalty logit_bias n presence_penalty seed stop stream stream_options
    temperature top_p user top_k min_p repetition_penalty stop_token_ids ignore_eos
    min_tokens include_stop_str_in_output skip_special_tokens spaces_between_special_tokens
    max_tokens truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids
    allowed_token_ids bad_words echo add_special_tokens structured_outputs response_format
    priority logprobs return_tokens_as_token_ids return_token_ids thinking_token_budget
    session_id prompt_cache_key cache_salt
""")
_CHAT = names("""
    messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort
    include_reasoning parallel_tool_calls add_generation_prompt continue_final_message
    documents chat_template_kwargs return_prompt_text
""")
_RESPONSES = names("""
    input instructions include max_output_tokens metadata model logit_bias
    parallel_tool_calls reasoning include_reasoning stream temperature text tool_choice
    tools top_logprobs top_p top_k min_p truncation user skip_special_tokens
    include_stop_str_in_output presence_penalty frequency_penalty priority
    previous_input_messages enable_response_messages structured_outputs repetition_penalty
    seed stop stop_token_ids ignore_eos chat_template_kwargs
    session_id prompt_cache_key cache_salt
""")
_COUNT = names("""
    model messages output_config system thinking tool_choice tools chat_template_kwargs
""")
_MESSAGES = _COUNT | names("""
    max_tokens metadata stop_sequences stream temperature top_k top_p
    session_id prompt_cache_key cache_salt
""")
_TOKENIZE = names("""
    model prompt add_special_tokens return_token_strs messages add_generation_prompt
    continue_final_message chat_template_kwargs tools
""")

_OF_PROMPTS = names("""
    model user truncate_prompt_tokens truncation_side padding priority
    session_id prompt_cache_key cache_salt
""")
_INPUT = _OF_PROMPTS | names("""
    input messages add_special_tokens add_generation_prompt continue_final_message
    chat_template_kwargs
""")
_ENCODING = names("encoding_format embed_dtype endianness")
_EMBEDDINGS = _INPUT | _ENCODING | names("dimensions use_activation")
_SCORING = _OF_PROMPTS | names("""
    use_activation max_tokens_per_query max_tokens_per_doc instruction chat_template_kwargs
""")
_RERANK = _SCORING | names("query documents top_n")
_SCORE = _SCORING | names("data_1 data_2 queries documents items text_1 text_2")

#: One set of parameters for several conversations, each with one whole answer.
_BATCH = (_SAMPLING | _CHAT) - names("""
    stream stream_options tools parallel_tool_calls reasoning_effort documents
    stop_token_ids ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens truncation_side prompt_logprobs allowed_token_ids bad_words
    add_special_tokens return_prompt_text thinking_token_budget
""")

HONOURED: dict[Route, frozenset[str]] = {
    Route.CHAT: _SAMPLING | _CHAT,
    Route.BATCH: _BATCH,
    Route.COMPLETION: _SAMPLING | {"prompt"},
    Route.RESPONSES: _RESPONSES,
    Route.MESSAGES: _MESSAGES,
    Route.COUNT_TOKENS: _COUNT,
    Route.TOKENIZE: _TOKENIZE,
    Route.DETOKENIZE: frozenset({"model", "tokens"}),
    Route.EMBEDDINGS: _EMBEDDINGS,
    Route.CLASSIFY: _INPUT | {"use_activation"},
    Route.POOLING: _EMBEDDINGS | {"task"},
    **dict.fromkeys(RERANKS, _RERANK),
    **dict.fromkeys(SCORES, _SCORE),
}

_POOLING_REFUSED: NoOps = PROCESSOR_FIELDS | {"chat_template": ()}
REFUSED: dict[Route, NoOps] = {
    Route.CHAT: fields.REFUSED[Kind.CHAT],
    Route.BATCH: fields.REFUSED[Kind.CHAT]
    | {"best_of": (1,), "early_stopping": (False,), "guided_decoding_backend": ()},
    Route.COMPLETION: fields.REFUSED[Kind.COMPLETION],
    Route.RESPONSES: ENGINE_FIELDS
    | {"background": (False,), "previous_response_id": (), "prompt": ()},
    Route.MESSAGES: ENGINE_FIELDS,
    Route.COUNT_TOKENS: {},
    Route.TOKENIZE: PROCESSOR_FIELDS | {"chat_template": ()},
    Route.DETOKENIZE: {},
    Route.EMBEDDINGS: _POOLING_REFUSED,
    Route.CLASSIFY: _POOLING_REFUSED,
    Route.POOLING: _POOLING_REFUSED | {"data": ()},
    **dict.fromkeys(RERANKS, PROCESSOR_FIELDS),
    **dict.fromkeys(SCORES, PROCESSOR_FIELDS),
}
#: What is honoured before a body is checked where responses are stored (`responses/turns.py`), and
#: refused elsewhere, with the way out.
STORED: dict[str, str] = {
    "background": "send it without background",
    "previous_response_id": "send the whole conversation as input",
}
_WITHOUT_LEDGER = "it is served where [gateway.jobs] path is set, and not in a batch"
#: Answers that are no JSON.
REFUSED_ENCODINGS = ("bytes", "bytes_only")
POOLED_ENCODINGS = (Route.EMBEDDINGS, Route.POOLING)

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def check_fields(route: Route, body: bytes, ignored: IgnoredFields) -> dict[str, Any]:
    """Returns the fields. Raises BatonError(INVALID_REQUEST | UNSUPPORTED_PARAMETER) with
    `param`."""
    try:
        given: dict[str, Any] = _decode(body)
    except msgspec.ValidationError as error:
        sentence = "the request body must be a JSON object"
        raise BatonError(Code.INVALID_REQUEST, sentence) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BatonError(
            Code.INVALID_REQUEST, f"the request body is not valid JSON: {error}"
        ) from error
    honoured, refused = HONOURED[route], REFUSED[route]
    for name, value in given.items():
        if name in honoured:
            continue
        if name in refused:
            if not is_no_op(value, refused[name]):
                refuse(name, f"{name!r} is not supported by this server{_way_out(route, name)}")
        elif name in WITHOUT_EFFECT:
            ignored.add(name)
        else:
            ignored.add_unknown(name)
    if given.get("encoding_format") in REFUSED_ENCODINGS and route in POOLED_ENCODINGS:
        refuse("encoding_format", 'encoding_format must be "float" or "base64" here')
    _note_inner(route, given, ignored)
    check_bias_keys(given.get("logit_bias"))
    return given


def _way_out(route: Route, name: str) -> str:
    way = STORED.get(name) if route is Route.RESPONSES else None
    return f": {_WITHOUT_LEDGER}; {way}" if way else ""


def known_fields(route: Route, given: dict[str, Any]) -> dict[str, Any]:
    """Those that vLLM's classes may want to read."""
    known = HONOURED[route] | REFUSED[route].keys() | WITHOUT_EFFECT
    return {name: value for name, value in given.items() if name in known}


def session_of(route: Route, given: dict[str, Any]) -> str:
    """What the fields say of the request's session; empty: nothing."""
    hints = (given.get("session_id"), given.get("prompt_cache_key"))
    return hinted_session(*hints, *(_anthropic_hints(given) if route.is_anthropic else ()))


def _note_inner(route: Route, given: dict[str, Any], ignored: IgnoredFields) -> None:
    options = given.get("stream_options")
    for name in options.keys() - STREAM_OPTIONS if isinstance(options, dict) else ():
        ignored.add_unknown(f"stream_options.{name}")
    messages = given.get("messages") if route in (Route.CHAT, Route.TOKENIZE) else ()
    for message in messages if isinstance(messages, list) else ():
        for name in message.keys() - MESSAGE_FIELDS if isinstance(message, dict) else ():
            ignored.add_unknown(f"messages[].{name}")


def _anthropic_hints(given: dict[str, Any]) -> tuple[object, object]:
    """Anthropic's clients have no field for it: they name a user, whose id has Claude Code's
    session, or mark the part of tools and system prompt that others share."""
    metadata = given.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    shared = msgspec.json.encode((given.get("tools"), given.get("system")))
    return user, shared.decode() if b'"cache_control":' in shared else None

"""Fields that OpenAI or vLLM define and that are refused by name.

A refused field may still carry a value that asks for nothing: null, or one listed here. A field
that no table lists is refused too, so that nothing a client asks for is silently ignored.
`REFUSED` holds for both paths, `UNSUPPORTED` for the plain one; what the full API adds for its own
routes is in `full_api/fields.py`.
"""

from __future__ import annotations

from services.gateway.api.kinds import Kind

#: Field name to the values that ask for nothing.
NoOps = dict[str, tuple[object, ...]]

#: Of every route that generates: the fleet's own affair, or not built.
ENGINE_FIELDS: NoOps = {
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "watermarking": (False,),
    "repetition_detection": (),
    "request_id": (),
    "session_id": (),
    "routed_experts_prompt_start": (0,),
    "mm_payload": (),
    "return_mm_kwargs": (),
    "cache_salt": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "vllm_xargs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
MEDIA_FIELDS: NoOps = {"media_io_kwargs": (), "mm_processor_kwargs": ()}
#: Of OpenAI's own service, which stores what it answered.
STORAGE_FIELDS: NoOps = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
}
_CHAT_FIELDS: NoOps = {
    "chat_template": (),
    "functions": ([],),
    "function_call": ("none",),
    "verbosity": (),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "metadata": ({},),
    "moderation": (),
}
_COMPLETION_FIELDS: NoOps = {"best_of": (1,), "suffix": (), "prompt_embeds": ()}

#: Refused by the plain path and by the full API.
REFUSED: dict[Kind, NoOps] = {
    Kind.CHAT: ENGINE_FIELDS | MEDIA_FIELDS | STORAGE_FIELDS | _CHAT_FIELDS,
    Kind.COMPLETION: ENGINE_FIELDS | _COMPLETION_FIELDS,
}

#: Honoured by the full API alone.
_FULL_API: NoOps = {
    "n": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "prompt_logprobs": (),
    "logprob_token_ids": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "priority": (0,),
    "return_tokens_as_token_ids": (False,),
    "return_token_offsets": (False,),
    "thinking_token_budget": (),
}
_FULL_API_CHAT: NoOps = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "reasoning_effort": (),
    "include_reasoning": (True,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": (),
    "chat_template_kwargs": ({},),
    "return_prompt_text": (False,),
}
_FULL_API_COMPLETION: NoOps = {"logprobs": (), "echo": (False,)}

#: Refused by the plain path.
UNSUPPORTED: dict[Kind, NoOps] = {
    Kind.CHAT: REFUSED[Kind.CHAT] | _FULL_API | _FULL_API_CHAT,
    Kind.COMPLETION: REFUSED[Kind.COMPLETION] | _FULL_API | _FULL_API_COMPLETION,
}


def is_no_op(value: object, no_ops: tuple[object, ...]) -> bool:
    """Whether a refused field may be passed over. True is not 1 here, nor 1 the same as 1.0."""
    return value is None or any(type(value) is type(no_op) and value == no_op for no_op in no_ops)

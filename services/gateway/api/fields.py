"""What becomes of the fields that a path does not honour.

A field that would change the answer and cannot be honoured is refused by name, unless its value
asks for nothing: null, or a value listed here. Every other field is ignored and named in a header
(`ignored.py`). `REFUSED` holds for both paths, `UNSUPPORTED` for the plain one; what the full API
adds for its own routes is in `full_api/fields.py`.
"""

from __future__ import annotations

from services.gateway.api.kinds import Kind

#: Field name to the values that ask for nothing.
NoOps = dict[str, tuple[object, ...]]


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: How images are processed, which is the same for all clients.
PROCESSOR_FIELDS: NoOps = {"media_io_kwargs": ({},), "mm_processor_kwargs": ({},)}
#: Of every route that generates: the fleet's own affair, or not built.
ENGINE_FIELDS: NoOps = PROCESSOR_FIELDS | {
    "use_beam_search": (False,),
    "watermarking": (False,),
    "repetition_detection": (),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
_CHAT_FIELDS: NoOps = {
    "chat_template": (),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "modalities": (["text"],),
    "web_search_options": (),
}
_COMPLETION_FIELDS: NoOps = {"best_of": (1,), "suffix": ("",), "prompt_embeds": ()}

#: Known, and without effect on the answer: never refused. OpenAI's own service stores answers,
#: moderates, guesses ahead and bills by tier. vLLM's render server has payloads and offsets.
WITHOUT_EFFECT = names("""
    client_metadata context_management length_penalty max_tool_calls
    metadata mm_payload moderation prediction
    prompt_cache_retention request_id return_mm_kwargs return_token_offsets
    routed_experts_prompt_start safety_identifier service_tier store stream_interval verbosity
    """)

#: Refused by the plain path and by the full API.
REFUSED: dict[Kind, NoOps] = {
    Kind.CHAT: ENGINE_FIELDS | _CHAT_FIELDS,
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
    "return_tokens_as_token_ids": (False,),
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

#: Of `stream_options`, on both paths.
STREAM_OPTIONS = frozenset({"include_usage", "continuous_usage_stats"})
#: Of a message, on both paths. The content of an answer that a client sends back is its own; ids,
#: signatures and what other servers add change nothing.
MESSAGE_FIELDS = names("""
    role content name tool_call_id tool_calls reasoning reasoning_content task tools
""")


def is_no_op(value: object, no_ops: tuple[object, ...]) -> bool:
    """Whether a refused field may be passed over. True is not 1 here, nor 1 the same as 1.0."""
    return value is None or any(type(value) is type(no_op) and value == no_op for no_op in no_ops)

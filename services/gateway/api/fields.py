"""Fields that OpenAI or vLLM define and this gateway does not honour yet.

Each is refused by name unless it carries a value that asks for nothing: null, or one listed here. A
field in no list is refused too, so that nothing a client asks for is silently ignored.
"""

from __future__ import annotations

from services.gateway.api.kinds import Kind

NoOps = dict[str, tuple[object, ...]]

_SHARED: NoOps = {
    "n": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
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
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "priority": (0,),
    "request_id": (),
    "session_id": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_offsets": (False,),
    "cache_salt": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "vllm_xargs": ({},),
    "repetition_detection": (),
    "thinking_token_budget": (),
    "watermarking": (False,),
    "routed_experts_prompt_start": (0,),
    "mm_payload": (),
    "return_mm_kwargs": (),
}

_CHAT: NoOps = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none",),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
    "reasoning_effort": (),
    "include_reasoning": (True,),
    "verbosity": (),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
    "moderation": (),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "media_io_kwargs": (),
    "mm_processor_kwargs": (),
    "return_prompt_text": (False,),
}

_COMPLETION: NoOps = {
    "logprobs": (),
    "echo": (False,),
    "best_of": (1,),
    "suffix": (),
    "prompt_embeds": (),
}

UNSUPPORTED: dict[Kind, NoOps] = {
    Kind.CHAT: _SHARED | _CHAT,
    Kind.COMPLETION: _SHARED | _COMPLETION,
}


def asks_for_nothing(kind: Kind, name: str, value: object) -> bool:
    """Whether an unsupported field may be passed over."""
    if value is None:
        return True
    return any(
        type(value) is type(allowed) and value == allowed for allowed in UNSUPPORTED[kind][name]
    )

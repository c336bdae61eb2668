"""What is asked of both servers. Greedy or seeded, so that the texts must be equal too."""

from __future__ import annotations

from typing import Any

MODEL = "baton-tiny"
HELLO: list[Any] = [{"role": "user", "content": "hello you there"}]
TALK: list[Any] = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    {"role": "assistant", "content": "three"},
    {"role": "user", "content": "four"},
]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": CITY}}


TOOLS = [tool("weather"), tool("news")]
CALLED: list[Any] = [
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 1}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]
TIGHT = {"disable_any_whitespace": True}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "conversation": {"messages": TALK},
    "stop string": {"stop": ["t", "zz"]},
    "stop string included": {"stop": "t", "include_stop_str_in_output": True},
    "stop token": {"stop_token_ids": [116]},
    "min tokens": {"min_tokens": 4, "stop": "t"},
    "ignore eos": {"ignore_eos": True},
    "max completion tokens": {"max_completion_tokens": 5, "max_tokens": None},
    "seed": {"temperature": 1.3, "seed": 11, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.3},
    "logit bias": {"logit_bias": {"120": 100}},
    "user": {"user": "someone"},
    "token ids": {"return_token_ids": True},
    "logprobs": {"logprobs": True},
    "top logprobs": {"logprobs": True, "top_logprobs": 3},
    "logprobs and stop": {"logprobs": True, "top_logprobs": 1, "stop": "t"},
    "prompt logprobs": {"prompt_logprobs": 1},
    "n": {"n": 3, "temperature": 1.0, "seed": 5},
    "n with logprobs": {"n": 2, "temperature": 1.0, "seed": 6, "logprobs": True},
    "echo": {"echo": True},
    "bad words": {"bad_words": ["e"]},
    "allowed ids": {"allowed_token_ids": [97, 98, 99]},
    "priority": {"priority": 0},
    "json object": {"response_format": {"type": "json_object"}, "structured_outputs": None},
    "json schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": CITY, "strict": True},
        },
        "max_tokens": 64,
    },
    "structured json": {"structured_outputs": {"json": CITY, **TIGHT}, "max_tokens": 64},
    "regex": {"structured_outputs": {"regex": "[ab]{4}[0-9]+x"}},
    "choice": {"structured_outputs": {"choice": ["apple", "pear"]}},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}},
    "tools, none chosen": {"tools": TOOLS, "tool_choice": "none"},
    "tools, auto": {"tools": TOOLS, "tool_choice": "auto"},
    "tools, required": {"tools": TOOLS, "tool_choice": "required", "max_tokens": 96},
    "tools, named": {
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "news"}},
        "max_tokens": 64,
    },
    "one tool at a time": {
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 96,
    },
    "after a tool": {"messages": CALLED, "tools": TOOLS, "tool_choice": "auto"},
    "special tokens": {"skip_special_tokens": False, "logit_bias": {"257": 100}},
}

COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "token ids": {"prompt": [104, 101, 108], "return_token_ids": True},
    "several prompts": {"prompt": ["hello", "you"]},
    "several id prompts": {"prompt": [[104, 101], [121, 111, 117]]},
    "n": {"n": 2, "temperature": 1.0, "seed": 3},
    "several prompts, n": {"prompt": ["a", "b"], "n": 2, "temperature": 1.0, "seed": 4},
    "logprobs": {"logprobs": 2},
    "echo": {"echo": True},
    "echo with logprobs": {"echo": True, "logprobs": 1},
    "only echo": {"echo": True, "max_tokens": 0, "logprobs": 1},
    "prompt logprobs": {"prompt_logprobs": 1},
    "stop string": {"stop": ["e"]},
    "response format": {"response_format": {"type": "json_object"}},
    "choice": {"structured_outputs": {"choice": ["apple", "pear"]}},
}

RESPONSES: dict[str, dict[str, Any]] = {
    "plain": {},
    "instructions": {"instructions": "be short", "input": HELLO},
    "schema": {
        "text": {"format": {"type": "json_schema", "name": "city", "schema": CITY}},
        "max_output_tokens": 64,
    },
    "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
    "tool": {
        "tools": [{"type": "function", "name": "news", "parameters": CITY}],
        "tool_choice": {"type": "function", "name": "news"},
        "max_output_tokens": 64,
    },
    "after a tool": {
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c1", "name": "news", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "none"},
        ],
        "tools": [{"type": "function", "name": "news", "parameters": CITY}],
    },
}

MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "system": {"system": "be short", "messages": HELLO},
    "stop": {"stop_sequences": ["t"]},
    "tool": {
        "tools": [{"name": "news", "description": "n", "input_schema": CITY}],
        "tool_choice": {"type": "tool", "name": "news"},
        "max_tokens": 64,
    },
}

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tokenize": ("/tokenize", {"prompt": "héllo"}),
    "tokenize with strings": ("/tokenize", {"prompt": "hi", "return_token_strs": True}),
    "tokenize a chat": ("/tokenize", {"messages": HELLO}),
    "detokenize": ("/detokenize", {"tokens": [104, 105, 195, 169]}),
    "count tokens": ("/v1/messages/count_tokens", {"messages": HELLO}),
}

WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "another model": ("/v1/chat/completions", {"messages": HELLO, "model": "other"}),
    "no messages": ("/v1/chat/completions", {}),
    "too many logprobs": (
        "/v1/chat/completions",
        {"messages": HELLO, "logprobs": True, "top_logprobs": 99},
    ),
    "top logprobs alone": ("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 2}),
    "a bad regex": (
        "/v1/chat/completions",
        {"messages": HELLO, "structured_outputs": {"regex": "(["}},
    ),
    "two structures": (
        "/v1/chat/completions",
        {"messages": HELLO, "structured_outputs": {"regex": "a", "choice": ["b"]}},
    ),
    "an unknown tool": (
        "/v1/chat/completions",
        {
            "messages": HELLO,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "x"}},
        },
    ),
    "greedy n": ("/v1/chat/completions", {"messages": HELLO, "n": 2, "temperature": 0}),
    "temperature": ("/v1/completions", {"prompt": "x", "temperature": 3}),
    "too long": ("/v1/completions", {"prompt": [1] * 9000}),
    "a token out of the vocabulary": ("/v1/completions", {"prompt": [1, 99_999]}),
    "no tokens": ("/detokenize", {}),
    "no max_tokens": ("/v1/messages", {"messages": HELLO}),
}

"""One Python client in its own environment: `python_clients.py KEY URL` prints what it made of the
answers, a JSON object with an entry for each turn."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

MODEL = "baton-tiny"
KEY = "none"
TOKENS = 12
#: Of an answer that is a call of a tool.
CALL_TOKENS = 100
ASK = "Where does the river rise?"
AGAIN = "And where does it end?"
SYSTEM = "Answer in few words."
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
FORCED = {"type": "function", "function": {"name": "weather"}}
RESULT = "sunny"

Turns = dict[str, Callable[[], Any]]


def told(turns: Turns) -> dict[str, Any]:
    """An exception is an outcome, too: its class and its HTTP status."""
    outcomes: dict[str, Any] = {}
    for name, turn in turns.items():
        try:
            outcomes[name] = turn()
        except Exception as error:
            status = getattr(error, "status_code", None)
            outcomes[name] = {"error": type(error).__name__, "status": status}
            print(f"{name}: {error!r}"[:2000], file=sys.stderr)
    return outcomes


def users(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def openai_python(url: str) -> Turns:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    about: Any = {"model": MODEL, "max_completion_tokens": TOKENS, "temperature": 0}
    create = client.chat.completions.create
    first = [{"role": "system", "content": SYSTEM}, users(ASK)]

    def said(**fields: Any) -> Any:
        return create(**(about | {"messages": first} | fields)).choices[0].message

    def second() -> Any:
        return said(messages=[*first, said().model_dump(), users(AGAIN)]).content

    def streamed() -> Any:
        chunks = create(
            messages=first, stream=True, stream_options={"include_usage": True}, **about
        )
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    def called() -> Any:
        return said(tools=[TOOL], tool_choice=FORCED, max_completion_tokens=CALL_TOKENS)

    def result() -> Any:
        call = called()
        answer = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": RESULT}
        return said(messages=[*first, call.model_dump(), answer], tools=[TOOL]).content

    def reasoned() -> Any:
        thought = {"role": "assistant", "content": "Far off.", "reasoning_content": "Hm."}
        more = {"thinking_blocks": [], "provider_specific_fields": {"a": 1}, "id": "x", "weight": 1}
        return said(messages=[*first, thought | more, users(AGAIN)]).content

    return {
        "first turn": lambda: said().content,
        "second turn": second,
        "stream": streamed,
        "tool call": lambda: called().tool_calls[0].function.arguments,
        "tool result": result,
        "reasoning sent back": reasoned,
    }


def openai_responses(url: str) -> Turns:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    tool = {"type": "function", "name": "weather", "parameters": CITY, "strict": True}
    about: Any = {"model": MODEL, "max_output_tokens": TOKENS, "temperature": 0, "store": False}
    about |= {"prompt_cache_key": "conversation-1", "instructions": SYSTEM}

    def said(given: Any = ASK, **fields: Any) -> Any:
        return client.responses.create(input=given, **(about | fields))

    def second() -> Any:
        output = [item.model_dump() for item in said().output]
        return said([users(ASK), *output, users(AGAIN)]).output_text

    def streamed() -> Any:
        events = client.responses.create(input=ASK, stream=True, **about)
        return "".join(e.delta for e in events if e.type == "response.output_text.delta")

    def called() -> Any:
        choice = {"type": "function", "name": "weather"}
        return said(tools=[tool], tool_choice=choice, max_output_tokens=CALL_TOKENS).output[-1]

    def result() -> Any:
        call = called()
        answer = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
        return said([users(ASK), call.model_dump(), answer]).output_text

    return {
        "first turn": lambda: said().output_text,
        "second turn": second,
        "stream": streamed,
        "tool call": lambda: called().arguments,
        "tool result": result,
    }


def anthropic(url: str) -> Turns:
    import anthropic as library

    client = library.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    tool = {"name": "weather", "input_schema": CITY}
    cached = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    about: Any = {"model": MODEL, "max_tokens": TOKENS, "system": cached}
    about |= {"metadata": {"user_id": "someone"}, "extra_body": {"temperature": 0}}

    def said(*messages: Any, **fields: Any) -> Any:
        return client.messages.create(messages=[users(ASK), *messages], **(about | fields))

    def second() -> Any:
        answer = {"role": "assistant", "content": [b.model_dump() for b in said().content]}
        return said(answer, users(AGAIN)).content[0].text

    def streamed() -> Any:
        with client.messages.stream(messages=[users(ASK)], **about) as stream:
            return stream.get_final_message().content[0].text

    def called() -> Any:
        choice = {"type": "tool", "name": "weather"}
        return said(tools=[tool], tool_choice=choice, max_tokens=CALL_TOKENS).content[-1]

    def result() -> Any:
        call = called()
        block = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
        asked = {"role": "assistant", "content": [call.model_dump()]}
        return said(asked, {"role": "user", "content": [block]}, tools=[tool]).content[0].text

    def reasoned() -> Any:
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
        answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Far off."}]}
        return said(answer, users(AGAIN)).content[0].text

    return {
        "first turn": lambda: said().content[0].text,
        "second turn": second,
        "stream": streamed,
        "tool call": lambda: called().input,
        "tool result": result,
        "reasoning sent back": reasoned,
    }


def litellm(url: str) -> Turns:
    import litellm as library

    about: Any = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{url}/v1", "api_key": KEY}
    about |= {"max_tokens": TOKENS, "temperature": 0, "num_retries": 0}
    first = [users(ASK)]

    def said(messages: Any = first, **fields: Any) -> Any:
        return library.completion(messages=messages, **(about | fields)).choices[0].message

    def second() -> Any:
        return said([*first, said().model_dump(), users(AGAIN)]).content

    def streamed() -> Any:
        chunks = library.completion(messages=first, stream=True, **about)
        return "".join(c.choices[0].delta.content or "" for c in chunks)

    def called() -> Any:
        return said(tools=[TOOL], tool_choice=FORCED, max_tokens=CALL_TOKENS)

    def result() -> Any:
        call = called()
        answer = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": RESULT}
        return said([*first, call.model_dump(), answer], tools=[TOOL]).content

    def reasoned() -> Any:
        thought = {"role": "assistant", "content": "Far off.", "reasoning_content": "Hm."}
        blocks = {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "x"}]}
        fields = {"provider_specific_fields": {"refusal": None}}
        return said([*first, thought | blocks | fields, users(AGAIN)]).content

    return {
        "first turn": lambda: said().content,
        "second turn": second,
        "stream": streamed,
        "tool call": lambda: called().tool_calls[0].function.arguments,
        "tool result": result,
        "reasoning sent back": reasoned,
    }


def langchain_openai(url: str) -> Turns:
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    settings: Any = {"model": MODEL, "base_url": f"{url}/v1", "api_key": KEY, "max_retries": 0}
    chat = ChatOpenAI(temperature=0, max_tokens=TOKENS, **settings)
    first: list[Any] = [SystemMessage(SYSTEM), HumanMessage(ASK)]

    def called() -> Any:
        return chat.bind_tools([TOOL], tool_choice="weather", max_tokens=CALL_TOKENS).invoke(first)

    def result() -> Any:
        call = called()
        answer = ToolMessage(RESULT, tool_call_id=call.tool_calls[0]["id"])
        return chat.bind_tools([TOOL], tool_choice="none").invoke([*first, call, answer]).content

    return {
        "first turn": lambda: chat.invoke(first).content,
        "second turn": lambda: (
            chat.invoke([*first, chat.invoke(first), HumanMessage(AGAIN)]).content
        ),
        "stream": lambda: "".join(str(chunk.content) for chunk in chat.stream(first)),
        "tool call": lambda: called().tool_calls[0]["args"],
        "tool result": result,
    }


def llama_index(url: str) -> Turns:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    chat = OpenAILike(
        model=MODEL,
        api_base=f"{url}/v1",
        api_key=KEY,
        is_chat_model=True,
        max_tokens=TOKENS,
        temperature=0,
        max_retries=0,
    )
    first = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=ASK)]
    again = ChatMessage(role="user", content=AGAIN)
    return {
        "first turn": lambda: chat.chat(first).message.content,
        "second turn": lambda: chat.chat([*first, chat.chat(first).message, again]).message.content,
        "stream": lambda: "".join(part.delta or "" for part in chat.stream_chat(first)),
    }


def instructor(url: str) -> Turns:
    import instructor as library
    import openai
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: Literal["Rome", "Oslo"]

    plain = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
    client = library.from_openai(plain, mode=library.Mode.TOOLS)

    def called() -> Any:
        return client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": ASK}],
            response_model=Weather,
            temperature=0,
            max_tokens=CALL_TOKENS,
            max_retries=0,
        ).city

    return {"tool call": called}


def pydantic_ai(url: str) -> Turns:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.settings import ModelSettings

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY))
    settings = ModelSettings(max_tokens=TOKENS, temperature=0)
    agent = Agent(model, system_prompt=SYSTEM, model_settings=settings, retries=0)

    def second() -> Any:
        history = agent.run_sync(ASK).all_messages()
        return agent.run_sync(AGAIN, message_history=history).output

    async def streamed() -> Any:
        async with agent.run_stream(ASK) as run:
            return await run.get_output()

    def typed() -> Any:
        more = ModelSettings(max_tokens=CALL_TOKENS, temperature=0)
        chooses = Agent(model, output_type=_weather_type(), model_settings=more, retries=0)
        run = chooses.run_sync(ASK)
        return run.output.city, run.all_messages()

    return {
        "first turn": lambda: agent.run_sync(ASK).output,
        "second turn": second,
        "stream": lambda: asyncio.run(streamed()),
        "tool call": lambda: typed()[0],
        "tool result": lambda: agent.run_sync(AGAIN, message_history=typed()[1]).output,
    }


def _weather_type() -> Any:
    from pydantic import BaseModel

    class Weather(BaseModel):
        city: Literal["Rome", "Oslo"]

    return Weather


PROGRAMS = {
    function.__name__: function
    for function in (
        openai_python,
        openai_responses,
        anthropic,
        litellm,
        langchain_openai,
        llama_index,
        instructor,
        pydantic_ai,
    )
}

if __name__ == "__main__":
    print("\n" + json.dumps(told(PROGRAMS[sys.argv[1]](sys.argv[2]))))

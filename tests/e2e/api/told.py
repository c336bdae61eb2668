"""What the `openai` client hands over, streamed or whole, in one form: the same assertions then
hold for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Choice:
    """`logprobs`: the client's rows, one for each token. `calls`: name and arguments, in order."""

    text: str = ""
    reasoning: str = ""
    finish: str | None = None
    logprobs: list[Any] = field(default_factory=list)
    calls: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Told:
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Any = None
    chunks: int = 0

    def at(self, index: int) -> Choice:
        return self.choices.setdefault(index, Choice())

    @property
    def only(self) -> Choice:
        (choice,) = self.choices.values()
        return choice


def chat(create: Callable[..., Any], *, stream: bool, **fields: Any) -> Told:
    """`create`: a client's `chat.completions.create`."""
    if not stream:
        return _whole(create(**fields), _message)
    return _streamed(create(**fields, **STREAMED), _delta)


def completion(create: Callable[..., Any], *, stream: bool, **fields: Any) -> Told:
    """`create`: a client's `completions.create`."""
    if not stream:
        return _whole(create(**fields), _text)
    return _streamed(create(**fields, **STREAMED), _text)


STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

Take = Callable[[Any, Choice], None]


def _whole(answer: Any, take: Take) -> Told:
    told = Told(usage=answer.usage)
    for choice in answer.choices:
        held = told.at(choice.index)
        take(choice, held)
        held.finish = choice.finish_reason
    return told


def _streamed(chunks: Any, take: Take) -> Told:
    told = Told()
    for chunk in chunks:
        told.chunks += 1
        told.usage = chunk.usage or told.usage
        for choice in chunk.choices:
            held = told.at(choice.index)
            assert held.finish is None, "a chunk after the finish reason"
            take(choice, held)
            held.finish = choice.finish_reason
    return told


def _message(choice: Any, held: Choice) -> None:
    message = choice.message
    held.text = message.content or ""
    held.reasoning = getattr(message, "reasoning", None) or ""
    held.logprobs = choice.logprobs.content if choice.logprobs else []
    calls = message.tool_calls or []
    held.calls = [(call.function.name, call.function.arguments) for call in calls]


def _delta(choice: Any, held: Choice) -> None:
    delta = choice.delta
    held.text += delta.content or ""
    held.reasoning += getattr(delta, "reasoning", None) or ""
    held.logprobs += choice.logprobs.content if choice.logprobs else []
    for call in delta.tool_calls or []:
        if call.index == len(held.calls):
            held.calls.append((call.function.name, ""))
        name, arguments = held.calls[call.index]
        held.calls[call.index] = name, arguments + (call.function.arguments or "")


def _text(choice: Any, held: Choice) -> None:
    held.text += choice.text
    if choice.logprobs is not None:
        rows = zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
        held.logprobs += list(rows)

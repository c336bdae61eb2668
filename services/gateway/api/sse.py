"""A streamed answer as server-sent events, in OpenAI's chunks.

Theory of operation: all of a chunk but its text is the same throughout a stream, so it is encoded
once; a token costs the JSON escape of its text and one join. The chunks have the shapes of vLLM's
(first the role alone, and the finish reason on the last text chunk), so that benchmarks count the
same chunks on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from common.errors import BatonError, Code
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.response_bodies import error_object, timings_object, usage_object
from services.gateway.streams.answer import Ending, Usage
from services.gateway.streams.connection import END, Connection

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


class Template:
    """The parts of one stream's chunks that do not change."""

    __slots__ = ("_chat", "_head", "_spec", "_tail", "_usage_null")

    def __init__(self, spec: RequestSpec) -> None:
        self._spec = spec
        self._chat = spec.kind is Kind.CHAT
        about = {
            "id": spec.response_id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": spec.created,
            "model": spec.asked_as,
        }
        head = b"data: " + _encode(about)[:-1]
        self._head = head
        self._usage_null = b',"usage":null' if spec.include_usage else b""
        close = b"}" if self._chat else b""
        self._tail = (
            close + b',"logprobs":null,"finish_reason":null}]' + self._usage_null + b"}\n\n"
        )

    @property
    def text_head(self) -> bytes:
        field = b'"delta":{"content":' if self._chat else b'"text":'
        return self._head + b',"choices":[{"index":0,' + field

    @property
    def text_tail(self) -> bytes:
        return self._tail

    def role(self) -> bytes:
        """The first chunk of a chat; empty for a completion."""
        spec = self._spec
        if not self._chat:
            return b""
        extra: dict[str, Any] = {}
        if spec.return_token_ids:
            extra["prompt_token_ids"] = spec.prompt_ids
        delta = {"role": "assistant", "content": ""}
        usage = Usage(len(spec.prompt_ids), 0, 0) if spec.continuous_usage else None
        return self._chunk(
            {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}, extra, usage
        )

    def full(
        self, text: str, token_ids: list[int], usage: Usage, ending: Ending | None, *, first: bool
    ) -> bytes:
        """A text chunk with the extras that only some streams ask for, or the last text chunk."""
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": text}} if self._chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": ending.reason if ending else None}
        if ending is not None:
            choice["stop_reason"] = ending.stop_reason
        spec = self._spec
        if spec.return_token_ids:
            choice["token_ids"] = token_ids
            if first and not self._chat:
                choice["prompt_token_ids"] = spec.prompt_ids
        return self._chunk(choice, {}, usage if spec.continuous_usage else None)

    def usage(self, usage: Usage) -> bytes:
        return (
            self._head
            + b',"choices":[],"usage":'
            + _encode(usage_object(usage, self._spec.kind))
            + b"}\n\n"
        )

    def timings(self, times: dict[str, float]) -> bytes:
        return self._head + b',"choices":[],"timings":' + _encode(times) + b"}\n\n"

    def _chunk(self, choice: dict[str, Any], extra: dict[str, Any], usage: Usage | None) -> bytes:
        rest = b"," + _encode(extra)[1:-1] if extra else b""
        counted = (
            b',"usage":' + _encode(usage_object(usage, self._spec.kind))
            if usage
            else self._usage_null
        )
        return b"".join(
            (self._head, b',"choices":[', _encode(choice), b"]", rest, counted, b"}\n\n")
        )


class SseAnswer:
    """One streamed answer; an `Answer`. Each call is one write. `now` reads the clock of the
    request's timer."""

    __slots__ = (
        "_completion",
        "_connection",
        "_head",
        "_now",
        "_plain",
        "_spec",
        "_started",
        "_tail",
        "_template",
    )

    def __init__(self, spec: RequestSpec, connection: Connection, now: Callable[[], float]) -> None:
        self._spec = spec
        self._now = now
        self._connection = connection
        self._template = template = Template(spec)
        self._head, self._tail = template.text_head, template.text_tail
        self._plain = not (spec.continuous_usage or spec.return_token_ids)
        self._started = False
        self._completion = 0

    def text(self, text: str, token_ids: list[int]) -> None:
        if self._started and self._plain:
            self._connection.write(b"".join((self._head, _encode(text), self._tail)))
            return
        first = not self._started
        opening = self._template.role() if first else b""
        self._started = True
        if self._plain:
            chunk = b"".join((self._head, _encode(text), self._tail))
        else:
            self._completion += len(token_ids)
            chunk = self._template.full(text, token_ids, self._usage(), None, first=first)
        self._connection.write(opening + chunk)

    def finish(self, text: str, token_ids: list[int], ending: Ending) -> None:
        template, first = self._template, not self._started
        parts = [template.role()] if first else []
        self._started = True
        parts.append(template.full(text, token_ids, ending.usage, ending, first=first))
        if self._spec.include_usage:
            parts.append(template.usage(ending.usage))
        timer = self._spec.timer
        if self._spec.timings and timer is not None:
            parts.append(template.timings(timings_object(timer, ending.usage, self._now())))
        parts.append(DONE)
        self._connection.write(b"".join(parts))
        self._connection.end()

    def fail(self, error: BatonError) -> None:
        """A failure after the first byte is an event, and the stream ends without [DONE]."""
        if not self._started:
            self._connection.refuse(error)
            return
        interrupted = BatonError(Code.STREAM_INTERRUPTED, error.message)
        event = b"data: " + _encode({"error": error_object(interrupted)}) + END
        self._connection.write(event)
        self._connection.end()

    def _usage(self) -> Usage:
        return Usage(len(self._spec.prompt_ids), self._completion, 0)

"""Bodies of `/v1/responses`: what one asks for and says, and what is marked in an answer. Pure.

Theory of operation: a conversation is a JSON array of input items. What a client said and what the
model answered is put in front of the next input as items, and vLLM renders them as it renders those
that a client sends. Values are copied as bytes wherever nothing in them matters, so that the cost
is that of finding where each ends. The functions are called on the ledger's thread.

As in vLLM's own store, `instructions` are those of the last request alone, and the model's
reasoning is left out of what it answered. It is kept where the answer calls a function, because the
model goes on from there; vLLM's store loses the call as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from common.errors import BatonError, Code

#: What this room reads of a body, and vLLM's classes do not get.
STORE, BACKGROUND, PREVIOUS = "store", "background", "previous_response_id"
#: Fields of a request that its response shows, with what stands for one that is missing.
SHOWN_FIELDS: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "max_output_tokens": None,
    "reasoning": None,
    "text": None,
    "truncation": "disabled",
    "user": None,
}
ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
#: The events of a stream that have the response in them, the last of them the whole one.
FIRST_EVENTS = (b"event: response.created\n", b"event: response.in_progress\n")
LAST_EVENTS = (b"event: response.completed\n", b"event: response.incomplete\n")
ERROR_EVENT = b"event: error\n"
DATA = b"data: "

_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_input = msgspec.json.Decoder(str | list[Raw]).decode
_items = msgspec.json.Decoder(list[Raw]).decode
_objects = msgspec.json.Decoder(list[dict[str, Any]]).decode
_encode = msgspec.json.encode


class Turn(NamedTuple):
    """What a body asks for, apart from the answer."""

    fields: dict[str, Raw]
    #: None: it does not say.
    store: bool | None
    background: bool
    stream: bool
    #: Id of the response before; empty: there is none.
    previous: str

    @property
    def is_stored(self) -> bool:
        """OpenAI's default."""
        return self.store is not False


class _Output(msgspec.Struct):
    output: list[dict[str, Any]] = []


class _Answer(msgspec.Struct):
    status: str = "completed"


def read(body: bytes) -> Turn | None:
    """None: it is no JSON object, which others say better. Raises BatonError(INVALID_REQUEST)."""
    try:
        fields = _fields(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    turn = Turn(
        fields,
        _flag(fields, STORE),
        _flag(fields, BACKGROUND) is True,
        _flag(fields, "stream") is True,
        _value(fields, PREVIOUS, str) or "",
    )
    if turn.background and not turn.is_stored:
        raise _bad("background needs store, which is false here", BACKGROUND)
    return turn


def _flag(fields: dict[str, Raw], name: str) -> bool | None:
    value: bool | None = _value(fields, name, bool)
    return value


def _value(fields: dict[str, Raw], name: str, kind: type) -> Any:
    try:
        return msgspec.json.decode(fields.get(name, b"null"), type=kind | None)
    except msgspec.MsgspecError as error:
        what = "true or false" if kind is bool else "the id of a response"
        raise _bad(f"{name} must be {what}", name) from error


def said(turn: Turn) -> list[Raw] | None:
    """The input as items; None: it is none that can be, which vLLM's classes say better."""
    try:
        given = _input(turn.fields.get("input", b"null"))
    except (msgspec.MsgspecError, RecursionError):
        return None
    if isinstance(given, list):
        return given
    return [Raw(_encode({"type": "message", "role": "user", "content": given}))]


def request_of(turn: Turn, items: list[Raw] | None) -> bytes:
    """The body that vLLM's classes get. `items`: its input; None: as it was given."""
    given = {
        name: value
        for name, value in turn.fields.items()
        if name not in (STORE, BACKGROUND, PREVIOUS)
    }
    return _encode(given if items is None else given | {"input": items})


def array(items: list[Raw]) -> bytes:
    return _encode(items)


def after(items: bytes, answer: bytes) -> list[Raw]:
    """A conversation and what was answered to it. `answer`: a response."""
    output = msgspec.json.decode(answer, type=_Output).output
    return [*_items(items), *(Raw(_encode(item)) for item in _answered(output))]


def _answered(output: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    calls = any(item.get("type") == "function_call" for item in output)
    for item in output:
        if item.get("type") == "message":
            yield from _messages(item)
        elif item.get("type") != "reasoning" or calls:
            yield item


def _messages(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One for each text: vLLM reads no other part of such an item."""
    for part in item.get("content") or ():
        if part.get("type") == "output_text":
            text = {"type": "output_text", "text": part["text"], "annotations": []}
            yield item | {"content": [text], "status": "completed"}


# ---------------------------------------------------------------- answers


def queued(turn: Turn, response_id: str, model: str, created: int) -> bytes:
    """The response before it has an answer. `created`: seconds."""
    given = {
        name: turn.fields.get(name) or Raw(_encode(SHOWN_FIELDS[name])) for name in SHOWN_FIELDS
    }
    shown: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "status": "queued",
        "error": None,
        "incomplete_details": None,
        "model": turn.fields.get("model") or model,
        "output": [],
        "usage": None,
        **given,
    }
    return _encode(shown | marks_of(turn, stored=True))


def marks_of(turn: Turn, *, stored: bool) -> dict[str, Any]:
    """What vLLM's answer cannot tell."""
    return {BACKGROUND: turn.background, STORE: stored, PREVIOUS: turn.previous or None}


def marked(answer: bytes, **marks: Any) -> bytes:
    """A response with other values for these fields."""
    return _encode(_fields(answer) | marks)


def finished(shown: bytes, answer: bytes) -> bytes:
    """The response that was `shown` while it ran, with its answer."""
    known = _fields(shown)
    kept = {name: known[name] for name in ("id", "created_at", BACKGROUND, STORE, PREVIOUS)}
    return marked(answer, **kept)


def failed(shown: bytes, error: BatonError) -> bytes:
    """The response that was `shown` while it ran, with its error in OpenAI's words."""
    code = "server_error" if error.http.status >= 500 else "invalid_prompt"
    return marked(shown, status="failed", error={"code": code, "message": error.message})


def status_of(answer: bytes) -> str:
    return msgspec.json.decode(answer, type=_Answer).status


def response_in(event: bytes) -> bytes:
    """The response in an event of a stream that has one."""
    return bytes(_fields(_data(event))["response"])


def with_response(event: bytes, response: bytes) -> bytes:
    """The event with another one in it."""
    return _with(event, _fields(_data(event)) | {"response": Raw(response)})


def _with(event: bytes, fields: dict[str, Any]) -> bytes:
    head = event[: event.index(DATA)]
    return b"".join((head, DATA, _encode(fields), b"\n\n"))


def _data(event: bytes) -> bytes:
    return event[event.index(DATA) + len(DATA) :]


# ---------------------------------------------------------------- events of the background


def event_of(name: str, number: int, **fields: Any) -> bytes:
    data = _encode({"type": name, "sequence_number": number, **fields})
    return b"event: %b\n%b%b\n\n" % (name.encode(), DATA, data)


def waiting_events(shown: bytes) -> tuple[bytes, ...]:
    """The events before any run. `shown`: the response while it waits."""
    names = ("response.created", "response.queued")
    return tuple(event_of(name, at, response=Raw(shown)) for at, name in enumerate(names))


def event_of_run(event: bytes, number: int, shown: bytes) -> bytes:
    """An event of vLLM's, as it is told of the response that was `shown` when its run began."""
    fields: dict[str, Any] = {**_fields(_data(event)), "sequence_number": number}
    if "response" in fields:
        fields["response"] = Raw(finished(shown, bytes(fields["response"])))
    return _with(event, fields)


def error_event(error: BatonError, number: int) -> bytes:
    return event_of("error", number, code=error.code.value, message=error.message, param=None)


# ---------------------------------------------------------------- input items


def listed(items: bytes, response_id: str) -> list[dict[str, Any]]:
    """The items of a conversation as a client lists them: each has an id, and text is a part."""
    return [_listed(item, response_id, at) for at, item in enumerate(_objects(items))]


def encoded(shown: dict[str, Any]) -> bytes:
    return _encode(shown)


def _listed(item: dict[str, Any], response_id: str, at: int) -> dict[str, Any]:
    kind = item.get("type") or "message"
    made = f"{ID_PREFIXES.get(kind, 'item')}_{response_id.removeprefix('resp_')}_{at}"
    shown = {**item, "type": kind, "id": item.get("id") or made}
    if kind == "message":
        shown["status"] = item.get("status") or "completed"
        content = item.get("content")
        if isinstance(content, str):
            part = "output_text" if item.get("role") == "assistant" else "input_text"
            shown["content"] = [{"type": part, "text": content}]
    return shown


def _bad(sentence: str, param: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, sentence, param=param)

"""From an input file to lines: what is wrong with a line, and which lines begin alike. Pure.

Theory of operation: prompts that begin alike are run one after the other, so that each finds the KV
of the beginning in a prefix cache. The order is that of `prefix`: digests of the first 64, 128, 256
bytes of the prompt and so on, one after the other. Lines that share the first n bytes share all
digests up to n, so a sort puts them side by side, whatever comes after; the key has a few dozen
bytes however long a prompt is. The bytes compared are those of the JSON, from the first field that
a chat template renders: lines that one program wrote alike share them if their prompts do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Raw, UnsetType

from services.gateway.api.routes import Route
from services.gateway.jobs.entries import not_run
from services.gateway.jobs.lines import Line

#: What a line of a batch may ask for. Each of these is answered by one JSON body.
ENDPOINTS = (Route.CHAT, Route.COMPLETION, Route.RESPONSES, Route.EMBEDDINGS)
CUSTOM_ID_CHARS_MAX = 512
PREFIX_BYTES_MIN, PREFIX_STEPS, DIGEST_BYTES = 64, 11, 4


class _Envelope(msgspec.Struct):
    custom_id: str
    url: str
    body: Raw
    method: str = "POST"


class _Body(msgspec.Struct):
    """The fields that say where a prompt begins, and whether the answer is a stream."""

    model: str | None = None
    stream: bool | None = None
    tools: Raw | UnsetType = UNSET
    instructions: Raw | UnsetType = UNSET
    messages: Raw | UnsetType = UNSET
    input: Raw | UnsetType = UNSET
    prompt: Raw | UnsetType = UNSET


class LineError(ValueError):
    """What is wrong with a line, as a sentence."""


class Planner:
    """Of one batch. Holds a digest of each custom_id, to find one that is used twice."""

    def __init__(self, batch: str, endpoint: str, line_bytes_max: int) -> None:
        self._batch = batch
        self._endpoint = endpoint
        self._line_bytes_max = line_bytes_max
        self._numbers: dict[bytes, int] = {}

    def plan(self, number: int, at: int, text: bytes) -> Line | None:
        """None for an empty line. `text`: at most `line_bytes_max` and one byte, without its end of
        line."""
        if not text.strip():
            return None
        custom_id: str | None = None
        try:
            if len(text) > self._line_bytes_max:
                raise LineError(
                    f"it has more than {self._line_bytes_max} bytes (gateway.body_bytes_max)"
                )
            envelope = _decoded(text)
            custom_id = envelope.custom_id
            self._check(envelope, number)
            prefix = prefix_of(_body(envelope.body))
        except LineError as error:
            sentence = f"line {number} was not run: {error}"
            entry = not_run(self._batch, number, custom_id, "invalid_line", sentence)
            return Line(number, b"", at, len(text), custom_id, entry)
        return Line(number, prefix, at, len(text), custom_id)

    def _check(self, envelope: _Envelope, number: int) -> None:
        custom_id = envelope.custom_id
        if not 0 < len(custom_id) <= CUSTOM_ID_CHARS_MAX:
            raise LineError(f"custom_id must have 1 to {CUSTOM_ID_CHARS_MAX} characters")
        if envelope.method.upper() != "POST":
            raise LineError(f"method must be POST, not {envelope.method[:16]!r}")
        if envelope.url != self._endpoint:
            raise LineError(
                f"url must be that of the batch, {self._endpoint}, not {envelope.url[:96]!r}"
            )
        name = hashlib.blake2b(custom_id.encode(errors="replace"), digest_size=8).digest()
        first = self._numbers.setdefault(name, number)
        if first != number:
            raise LineError(f"line {first} has the same custom_id, {custom_id[:96]!r}")


def split(pieces: Iterator[bytes], line_bytes_max: int) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line; of a longer one, the first `line_bytes_max` and one
    more. Holds one line and one piece at a time."""
    number, at, start, rest = 1, 0, 0, bytearray()
    for piece in pieces:
        cut = 0
        while (end := piece.find(b"\n", cut)) >= 0:
            rest += piece[cut : min(end, cut + line_bytes_max + 1)]
            yield number, start, bytes(rest[: line_bytes_max + 1])
            rest.clear()
            number, cut, start = number + 1, end + 1, at + end + 1
        if len(rest) <= line_bytes_max:
            rest += piece[cut:]
        at += len(piece)
    if rest:
        yield number, start, bytes(rest[: line_bytes_max + 1])


def request_body(text: bytes) -> bytes:
    """The request in a line that was planned. Raises LineError if the file is another one now."""
    return bytes(_decoded(text).body)


def prefix_of(body: _Body) -> bytes:
    begins = [body.tools, body.instructions, body.messages, body.input, body.prompt]
    prompt = b"".join(bytes(part) for part in begins if isinstance(part, Raw))
    digests = [_digest((body.model or "").encode(errors="replace"))]
    for step in range(PREFIX_STEPS):
        length = PREFIX_BYTES_MIN << step
        digests.append(_digest(prompt[:length]))
        if length >= len(prompt):
            break
    return b"".join(digests)


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def _decoded(text: bytes) -> _Envelope:
    try:
        return msgspec.json.decode(text, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(
            f"it must be an object with custom_id, method, url and body: {error}"
        ) from error


def _body(raw: Raw) -> _Body:
    try:
        body = msgspec.json.decode(raw, type=_Body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"body: {error}") from error
    if body.stream:
        raise LineError("body.stream must not be true: answers go to a file")
    return body

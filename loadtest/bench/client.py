"""One streamed request over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from loadtest.bench.sample import FailureKind, Sample

DATA = b"data:"
DONE = b"[DONE]"
DETAIL_CHARS = 200
TIMING_OF_STREAMS = "first-token;dur="


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] = {}
    finish_reason: str | None = None

    @property
    def speaks(self) -> bool:
        delta = self.delta
        return bool(self.text or delta.get("content") or delta.get("reasoning_content"))


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class Client:
    """Sends requests to one path of an endpoint. `now` returns seconds since the start of the load.
    `on_gap` is called with each wait between two chunks in milliseconds, `on_chunk` with the
    instant of each chunk."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        path: str,
        now: Callable[[], float],
        on_gap: Callable[[float], None],
        on_chunk: Callable[[float], None],
    ) -> None:
        self._session = session
        self._path = path
        self._now = now
        self._on_gap = on_gap
        self._on_chunk = on_chunk

    async def ask(self, sample: Sample, body: bytes) -> None:
        """Fills the sample. Raises nothing but cancellation."""
        sample.sent = self._now()
        headers = {"content-type": "application/json"}
        try:
            async with self._session.post(self._path, data=body, headers=headers) as response:
                sample.status = response.status
                sample.request_id = response.headers.get("x-request-id", "")
                if response.status != 200:
                    await self._refused(sample, response)
                    return
                sample.server_first_ms = _server_timing(response.headers.get("server-timing", ""))
                await self._stream(sample, response)
        except TimeoutError:
            sample.error = FailureKind.TIMEOUT
        except aiohttp.ClientConnectorError as error:
            sample.error, sample.detail = FailureKind.CONNECT, str(error)[:DETAIL_CHARS]
        except (aiohttp.ClientError, ConnectionError) as error:
            sample.error = FailureKind.CUT
            sample.detail = f"{type(error).__name__} {error}"[:DETAIL_CHARS]

    async def _stream(self, sample: Sample, response: aiohttp.ClientResponse) -> None:
        finished = False
        async for line in response.content:
            if not line.startswith(DATA):
                continue
            payload = line[len(DATA) :].strip()
            if payload == DONE:
                finished = True
                break
            if not self._chunk(sample, payload):
                return
        if finished or sample.finish:
            sample.done = self._now()
        else:
            sample.error = FailureKind.CUT
            sample.detail = f"the stream ended after {sample.chunks} chunks without saying why"

    def _chunk(self, sample: Sample, payload: bytes) -> bool:
        """False: the answer is broken and over."""
        try:
            chunk = _CHUNK.decode(payload)
        except msgspec.MsgspecError as error:
            sample.error, sample.detail = FailureKind.GARBLED, str(error)[:DETAIL_CHARS]
            return False
        if chunk.error is not None:
            sample.error, sample.detail = FailureKind.ERROR_EVENT, str(chunk.error)[:DETAIL_CHARS]
            return False
        if chunk.usage is not None:
            sample.prompt_tokens = chunk.usage.prompt_tokens
            sample.completion_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            if choice.speaks or (choice.finish_reason and sample.first is None):
                self._token(sample)
            sample.finish = choice.finish_reason or sample.finish
        return True

    def _token(self, sample: Sample) -> None:
        now = self._now()
        if sample.last is None:
            sample.first = now
        else:
            self._on_gap((now - sample.last) * 1000)
            sample.stall = max(sample.stall, now - sample.last)
        sample.last = now
        sample.chunks += 1
        self._on_chunk(now)

    async def _refused(self, sample: Sample, response: aiohttp.ClientResponse) -> None:
        text = await response.text(errors="replace")
        code, message = _error(text)
        overload = response.status in (429, 503)
        kind = FailureKind.REFUSED if overload else FailureKind.HTTP
        sample.error = f"{kind} {response.status} {code}".strip()
        sample.detail = message[:DETAIL_CHARS]
        sample.last = self._now()
        retry_after = response.headers.get("Retry-After", "")
        sample.retry_after = float(retry_after) if retry_after.isdigit() else None


def _error(text: str) -> tuple[str, str]:
    """Code and message, from OpenAI's shape or whatever there is."""
    try:
        error = msgspec.json.decode(text).get("error", {})
        return str(error.get("code") or error.get("type") or ""), str(error.get("message", text))
    except (msgspec.MsgspecError, AttributeError):
        return "", text


def _server_timing(header: str) -> float | None:
    _, found, rest = header.partition(TIMING_OF_STREAMS)
    number = rest.split(",")[0].split(";")[0]
    return float(number) if found and number.replace(".", "", 1).isdigit() else None

"""Generations whose answer a helper process writes: what the engines sent is kept as it came.

An answer with logprobs holds some objects for each of them, which take seconds to make and to
write. Here deltas are only put in order by the journal and searched for stop strings by vLLM's own
detokenizer. The helper gives them to the same classes as if an engine had just sent them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from common.errors import BatonError
from common.messages import Delta, FinishReason
from services.gateway.full_api.port import ApiRequest, Recorded
from services.gateway.full_api.vllm.stream import take
from services.gateway.streams.answer import PushOutcome
from services.gateway.streams.journal import Journal

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Delta).decode


class AllRecorded(BaseException):
    """Ends vLLM's part of a request, since a helper does it again with all deltas. No handler of
    errors takes it for one."""


class Recording:
    """Of one HTTP request. `left`: prompts whose generations have yet to end."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.deltas: Recorded = {}
        self._open = 0
        self._changed = asyncio.Event()
        self.failed = False

    def begin(self, key: str) -> list[msgspec.Raw]:
        """A generation. Its deltas go into the list."""
        self._open += 1
        return self.deltas.setdefault(key, [])

    def ended(self) -> None:
        self._open -= 1
        self._changed.set()

    def fail(self, _error: BatonError) -> None:
        self.failed = True
        self._changed.set()

    async def wait(self) -> None:
        """Until all generations that were begun have ended, or one has failed."""
        while self._open and not self.failed:
            self._changed.clear()
            await self._changed.wait()


class RecordedStream:
    """A `TokenStream` and the `FailureListener` of the same request. `detokenizer`: vLLM's, which
    knows the stop strings."""

    def __init__(
        self,
        journal: Journal,
        detokenizer: Any,
        api_request: ApiRequest,
        key: str,
        recording: Recording,
    ) -> None:
        self.journal = journal
        self.error: BatonError | None = None
        self._detokenizer = detokenizer
        self._api_request = api_request
        self._kept = recording.begin(key)
        self._first: Delta | None = None
        self._recording = recording

    def push(self, delta: Delta) -> PushOutcome:
        before = len(self.journal.emitted)
        refused = take(self, self._api_request, delta)
        if refused is not None:
            return refused
        if self._first is None:
            self._first = delta
        self._kept.append(msgspec.Raw(_encode(replace(delta, attempt=1, index=before))))
        ended = delta.finish_reason == FinishReason.STOP
        if self._detokenizer.update(list(delta.token_ids), ended) is not None:
            self.journal.truncate(self._detokenizer.num_output_tokens())
            self._end(self._first)
            return PushOutcome.STOPPED
        if not delta.finish_reason:
            return PushOutcome.RUNNING
        self._end(self._first)
        return PushOutcome.FINISHED

    def _end(self, first: Delta) -> None:
        """What the journal knows of the prompt's caches, P's among them, goes with the first
        delta."""
        journal = self.journal
        counted = replace(
            first,
            attempt=1,
            index=0,
            cached_tokens=journal.cached_tokens,
            handed_over_tokens=0,
            stored_tokens=journal.stored_tokens,
        )
        self._kept[0] = msgspec.Raw(_encode(counted))
        self._recording.ended()

    def fail(self, error: BatonError) -> None:
        self._api_request.fail(error)
        self._recording.fail(error)


def replay(push: Callable[[Delta], PushOutcome], deltas: list[msgspec.Raw]) -> None:
    """Gives a stream what was recorded, up to its end."""
    for delta in deltas:
        if push(_decode(delta)) is not PushOutcome.RUNNING:
            return

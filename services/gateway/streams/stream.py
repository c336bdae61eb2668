"""One stream from token ids to text: journal, detokenizer, stop scanner, answer. Sans-IO.

This is the path of every token; without stop strings it does the least possible. With stop strings
it takes the tokens of a delta one by one, so that `usage` counts exactly those up to the one that
completed the stop string.
"""

from __future__ import annotations

from common.errors import BatonError, Code
from common.messages import Delta, FinishReason, Sampling
from services.gateway.streams.answer import Answer, Ending, PushOutcome, Usage, usage_of
from services.gateway.streams.journal import DeltaOrder, Journal
from services.gateway.streams.stops import StopScanner
from services.gateway.text.port import Detokenizer


class TextStream:
    """A `TokenStream`. `include_stop`: the text of a stop string or token is shown."""

    __slots__ = (
        "_answer", "_began", "_detokenizer", "_include_stop", "_min_tokens",
        "_scanner", "_stop_token_ids", "_unsent_ids", "error", "journal",
    )  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        sampling: Sampling,
        detokenizer: Detokenizer,
        answer: Answer,
        *,
        stops: tuple[str, ...] = (),
        include_stop: bool = False,
    ) -> None:
        self.journal = journal
        self.error: BatonError | None = None
        self._answer = answer
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops, include=include_stop) if stops else None
        self._include_stop = include_stop
        self._min_tokens = sampling.min_tokens
        self._stop_token_ids = sampling.stop_token_ids
        #: Whether the answer was given anything.
        self._began = False
        #: Ids whose text is not complete, and which the answer has yet to be given.
        self._unsent_ids: list[int] = []

    @property
    def usage(self) -> Usage:
        return usage_of(self.journal)

    def push(self, delta: Delta) -> PushOutcome:
        journal, token_ids = self.journal, delta.token_ids
        try:
            order = journal.accept(delta.attempt, delta.index, token_ids)
        except BatonError as error:
            self.error = error
            return PushOutcome.BROKEN
        if order is not DeltaOrder.NEXT:
            return PushOutcome.DROPPED if order is DeltaOrder.STALE else self._broken(delta)
        if not delta.index:
            journal.take_prompt_counts(delta)
        if delta.error:
            return self._failed(delta)
        if self._scanner is not None:
            return self._push_scanned(delta, self._scanner)
        if delta.finish_reason:
            return self._finish(delta)
        self._emit(self._detokenizer.push(token_ids), token_ids)
        return PushOutcome.RUNNING

    def _emit(self, text: str, token_ids: list[int]) -> None:
        if text or not self._began:
            if self._unsent_ids:
                token_ids = [*self._unsent_ids, *token_ids]
                self._unsent_ids = []
            self._began = True
            self._answer.text(text, token_ids)
        else:
            self._unsent_ids += token_ids

    def _finish(self, delta: Delta) -> PushOutcome:
        visible = self._visible_ids(delta)
        text = self._detokenizer.push(visible) + self._detokenizer.flush()
        self._end(text, delta.token_ids, delta.finish_reason, self._stop_token(delta))
        return PushOutcome.FINISHED

    def _push_scanned(self, delta: Delta, scanner: StopScanner) -> PushOutcome:
        before = len(self.journal.emitted) - len(delta.token_ids)
        visible = len(self._visible_ids(delta))
        pieces: list[str] = []
        for count, token in enumerate(delta.token_ids, start=1):
            text = self._detokenizer.push([token]) if count <= visible else ""
            safe, stop = scanner.feed(text, armed=before + count > self._min_tokens)
            pieces.append(safe)
            if stop is not None:
                self.journal.truncate(before + count)
                ids = delta.token_ids[:count]
                self._end("".join(pieces), ids, FinishReason.STOP, stop)
                ended = delta.finish_reason and count == len(delta.token_ids)
                return PushOutcome.FINISHED if ended else PushOutcome.STOPPED
        if delta.finish_reason:
            return self._finish_scanned(delta, scanner, pieces)
        self._emit("".join(pieces), delta.token_ids)
        return PushOutcome.RUNNING

    def _finish_scanned(self, delta: Delta, scanner: StopScanner, pieces: list[str]) -> PushOutcome:
        """Bytes that never became a character are shown as U+FFFD, which may complete a stop
        string."""
        safe, stop = scanner.feed(self._detokenizer.flush())
        pieces += [safe, scanner.flush()]
        reason = FinishReason.STOP if stop is not None else delta.finish_reason
        self._end("".join(pieces), delta.token_ids, reason, stop or self._stop_token(delta))
        return PushOutcome.FINISHED

    def _visible_ids(self, delta: Delta) -> list[int]:
        """A token that ended the text is counted, but its text is shown only on request."""
        if delta.finish_reason == FinishReason.STOP and not self._include_stop:
            return delta.token_ids[:-1]
        return delta.token_ids

    def _stop_token(self, delta: Delta) -> int | None:
        return delta.stop_token if delta.stop_token in self._stop_token_ids else None

    def _end(
        self, text: str, token_ids: list[int], reason: str, stop_reason: str | int | None
    ) -> None:
        ids = [*self._unsent_ids, *token_ids]
        self._began = True
        self._answer.finish(text, ids, Ending(str(reason), stop_reason, self.usage))

    def _failed(self, delta: Delta) -> PushOutcome:
        code = Code(delta.error) if delta.error in set(Code) else Code.INTERNAL
        self.error = BatonError(code, delta.message or "the decode worker gave up the request")
        return PushOutcome.ERROR

    def _broken(self, delta: Delta) -> PushOutcome:
        expected = len(self.journal.emitted)
        self.error = BatonError(
            Code.STREAM_INTERRUPTED,
            f"tokens were lost: the decode worker sent index {delta.index} after {expected} tokens",
        )
        return PushOutcome.BROKEN

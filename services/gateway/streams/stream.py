"""One stream from token ids to text: journal, detokenizer, stop scanner, answer. Sans-IO.

This is the per-token path; the branch without stop strings does the least possible. With stop
strings the tokens of a delta are taken one by one, so that `usage` counts exactly those up to the
one that completed the stop string.
"""

from __future__ import annotations

from common.errors import BatonError, Code
from common.messages import Delta, FinishReason, Sampling
from services.gateway.streams.answer import Answer, Ending, Usage
from services.gateway.streams.journal import Journal, Seen
from services.gateway.streams.stops import StopScanner
from services.gateway.streams.verdict import Verdict
from services.gateway.text.port import Detokenizer


class TextStream:
    """`error` is set after ERROR and BROKEN; the answer has not been told of it then."""

    __slots__ = (
        "_answer", "_cached", "_detokenizer", "_include_stop", "_min_tokens", "_scanner",
        "_spoke", "_stop_token_ids", "_untold", "error", "journal",
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
        self._cached = 0
        self._spoke = False
        self._untold: list[int] = []

    @property
    def spoke(self) -> bool:
        """Whether the answer was given any token."""
        return self._spoke

    @property
    def usage(self) -> Usage:
        journal = self.journal
        return Usage(len(journal.prompt_ids), len(journal.emitted), self._cached)

    def push(self, delta: Delta) -> Verdict:
        journal, token_ids = self.journal, delta.token_ids
        try:
            seen = journal.accept(delta.attempt, delta.index, token_ids)
        except BatonError as error:
            self.error = error
            return Verdict.BROKEN
        if seen is not Seen.NEXT:
            return Verdict.DROPPED if seen is Seen.STALE else self._broken(delta)
        if delta.cached_tokens and not delta.index:
            self._cached = self._cached or delta.cached_tokens
        if delta.error:
            return self._failed(delta)
        if self._scanner is not None:
            return self._push_scanned(delta, self._scanner)
        if delta.finish_reason:
            return self._finish(delta)
        self._say(self._detokenizer.push(token_ids), token_ids)
        return Verdict.RUNNING

    def _say(self, text: str, token_ids: list[int]) -> None:
        if text or not self._spoke:
            if self._untold:
                token_ids = [*self._untold, *token_ids]
                self._untold = []
            self._spoke = True
            self._answer.text(text, token_ids)
        else:
            self._untold += token_ids

    def _finish(self, delta: Delta) -> Verdict:
        spoken = self._spoken_ids(delta)
        text = self._detokenizer.push(spoken) + self._detokenizer.flush()
        self._end(text, delta.token_ids, delta.finish_reason, self._stop_token(delta))
        return Verdict.FINISHED

    def _push_scanned(self, delta: Delta, scanner: StopScanner) -> Verdict:
        before = len(self.journal.emitted) - len(delta.token_ids)
        spoken = len(self._spoken_ids(delta))
        pieces: list[str] = []
        for count, token in enumerate(delta.token_ids, start=1):
            text = self._detokenizer.push([token]) if count <= spoken else ""
            safe, stop = scanner.feed(text, armed=before + count > self._min_tokens)
            pieces.append(safe)
            if stop is not None:
                self.journal.forget_after(before + count)
                ids = delta.token_ids[:count]
                self._end("".join(pieces), ids, FinishReason.STOP, stop)
                ended = delta.finish_reason and count == len(delta.token_ids)
                return Verdict.FINISHED if ended else Verdict.STOPPED
        if delta.finish_reason:
            return self._finish_scanned(delta, scanner, pieces)
        self._say("".join(pieces), delta.token_ids)
        return Verdict.RUNNING

    def _finish_scanned(self, delta: Delta, scanner: StopScanner, pieces: list[str]) -> Verdict:
        """Bytes that never became a character may still complete a stop string with U+FFFD."""
        safe, stop = scanner.feed(self._detokenizer.flush())
        pieces += [safe, scanner.flush()]
        reason = FinishReason.STOP if stop is not None else delta.finish_reason
        self._end("".join(pieces), delta.token_ids, reason, stop or self._stop_token(delta))
        return Verdict.FINISHED

    def _spoken_ids(self, delta: Delta) -> list[int]:
        """A token that ended the text is counted, and its text shown only when asked for."""
        if delta.finish_reason == FinishReason.STOP and not self._include_stop:
            return delta.token_ids[:-1]
        return delta.token_ids

    def _stop_token(self, delta: Delta) -> int | None:
        return delta.stop_token if delta.stop_token in self._stop_token_ids else None

    def _end(
        self, text: str, token_ids: list[int], reason: str, stop_reason: str | int | None
    ) -> None:
        ids = [*self._untold, *token_ids]
        self._spoke = True
        self._answer.finish(text, ids, Ending(str(reason), stop_reason, self.usage))

    def _failed(self, delta: Delta) -> Verdict:
        code = Code(delta.error) if delta.error in set(Code) else Code.INTERNAL
        self.error = BatonError(code, delta.message or "the decode worker gave up the request")
        return Verdict.ERROR

    def _broken(self, delta: Delta) -> Verdict:
        expected = len(self.journal.emitted)
        self.error = BatonError(
            Code.STREAM_INTERRUPTED,
            f"tokens were lost: the decode worker sent index {delta.index} after {expected} tokens",
        )
        return Verdict.BROKEN

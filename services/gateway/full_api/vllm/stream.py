"""One generation of the full API: deltas in, vLLM's own output processing behind.

The journal decides which delta is next, as on the plain path. A delta that it accepts becomes the
`EngineCoreOutput` that vLLM's EngineCore would have sent. vLLM's `OutputProcessor` makes the text
of it, with logprobs, stop strings and n choices in one answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import BatonError, Code
from common.messages import Delta, FinishReason, TokenLogprobs
from services.gateway.full_api.port import ApiRequest
from services.gateway.streams.answer import PushOutcome, TokenStream, usage_of
from services.gateway.streams.journal import DeltaOrder, Journal

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.engine.output_processor import OutputProcessor
    from vllm.v1.metrics.stats import PrefillStats


def take(stream: TokenStream, api_request: ApiRequest, delta: Delta) -> PushOutcome | None:
    """Gives a delta to the stream's journal. None: its tokens are next, and were taken."""
    journal = stream.journal
    try:
        order = journal.accept(delta.attempt, delta.index, delta.token_ids)
    except BatonError as error:
        stream.error = error
        return PushOutcome.BROKEN
    if order is DeltaOrder.STALE:
        return PushOutcome.DROPPED
    if order is DeltaOrder.GAP:
        sentence = f"tokens were lost: the decode worker sent index {delta.index} too early"
        stream.error = BatonError(Code.STREAM_INTERRUPTED, sentence)
        return PushOutcome.BROKEN
    if delta.error:
        code = Code(delta.error) if delta.error in set(Code) else Code.INTERNAL
        stream.error = BatonError(code, delta.message or "the decode worker gave up the request")
        return PushOutcome.ERROR
    api_request.has_output = True
    if not delta.index:
        journal.take_prompt_counts(delta)
    return None


class EngineStream:
    """A `TokenStream` and the `FailureListener` of the same request."""

    def __init__(
        self,
        key: str,
        journal: Journal,
        processor: OutputProcessor,
        api_request: ApiRequest,
        stop_token_ids: frozenset[int],
        wake: Callable[[BatonError], None],
    ) -> None:
        self.journal = journal
        self.error: BatonError | None = None
        #: vLLM's id of the request.
        self._key = key
        self._processor = processor
        self._api_request = api_request
        #: Those that are reported as the client's stop reason.
        self._stop_token_ids = stop_token_ids
        #: Wakes the reader of the output, because the request failed.
        self._wake = wake

    def push(self, delta: Delta) -> PushOutcome:
        return take(self, self._api_request, delta) or self._process(delta)

    def fail(self, error: BatonError) -> None:
        self._api_request.fail(error)
        self._wake(error)

    def _process(self, delta: Delta) -> PushOutcome:
        before = len(self.journal.emitted) - len(delta.token_ids)
        output = self._output(delta, is_first=before == 0)
        if before:
            self._correct_prompt_counts()
        stopped = self._processor.process_outputs([output]).reqs_to_abort
        if stopped:
            self.journal.truncate(before + len(output.new_token_ids))
            return PushOutcome.STOPPED
        return PushOutcome.FINISHED if delta.finish_reason else PushOutcome.RUNNING

    def _output(self, delta: Delta, *, is_first: bool) -> EngineCoreOutput:
        from vllm.v1.engine import EngineCoreOutput
        from vllm.v1.engine import FinishReason as VllmFinish

        finish = {FinishReason.STOP: VllmFinish.STOP, FinishReason.LENGTH: VllmFinish.LENGTH}
        stops = delta.stop_token in self._stop_token_ids
        return EngineCoreOutput(
            request_id=self._key,
            new_token_ids=list(delta.token_ids),
            new_logprobs=_sample_logprobs(delta.logprobs),
            new_prompt_logprobs_tensors=_prompt_logprobs(delta.prompt_logprobs),
            finish_reason=finish[FinishReason(delta.finish_reason)]
            if delta.finish_reason
            else None,
            stop_reason=delta.stop_token if stops else None,
            prefill_stats=self._prefill_stats() if is_first else None,
        )

    def _prefill_stats(self) -> PrefillStats:
        """What vLLM's engine would count of the prompt."""
        from vllm.v1.metrics.stats import PrefillStats

        usage = usage_of(self.journal)
        return PrefillStats(num_cached_tokens=usage.cached, num_cache_creation_tokens=usage.stored)

    def _correct_prompt_counts(self) -> None:
        """P's report may come after the first token, where vLLM takes over the counts. A stream has
        read them by then; what it says of P's cache is too low in that case."""
        state, usage = self._processor.request_states.get(self._key), usage_of(self.journal)
        if state is not None:
            state.num_cached_tokens = usage.cached
            state.num_cache_creation_tokens = usage.stored


def _sample_logprobs(rows: list[TokenLogprobs] | None) -> Any:
    if rows is None:
        return None
    from vllm.v1.outputs import LogprobsLists

    return LogprobsLists(
        np.array([row.token_ids for row in rows]),
        np.array([row.logprobs for row in rows]),
        np.array([row.rank for row in rows]),
    )


def _prompt_logprobs(rows: list[TokenLogprobs] | None) -> Any:
    if not rows:
        return None
    import torch
    from vllm.v1.outputs import LogprobsTensors

    return LogprobsTensors(
        torch.tensor([row.token_ids for row in rows]),
        torch.tensor([row.logprobs for row in rows], dtype=torch.float64),
        torch.tensor([row.rank for row in rows]),
    )

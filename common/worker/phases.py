"""What a worker computes in each phase: prompt tokens and generated tokens per second, the size of
its batches, handoffs in flight, how busy its GPUs are, and how many drafted tokens were accepted.

Sans-IO. It counts what goes into the engine and what comes out, at the cost of an addition for each
output, and is asked twice a second, for the worker's Beat and its metrics.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from common.engine.port import Batch, EngineRequest
from common.messages import PhaseReport, Role
from common.worker.gpu import GpuReading

WINDOW_SECONDS = 10.0
SAMPLES_MAX = 64
PENDING_MAX = 65_536


class _Sample(NamedTuple):
    at: float
    prefilled: int
    decoded: int
    outputs: int
    steps: int
    drafted: int
    accepted: int


class PhaseMeter:
    """Totals since the start, and rates of the last `WINDOW_SECONDS`."""

    def __init__(self, now: float) -> None:
        #: Prompt tokens that were computed here, and tokens that were generated here.
        self.prefilled = self.decoded = 0
        #: Tokens that were drafted here, and those that were accepted, by position in a draft.
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        self._outputs = self._steps = 0
        #: Prompt tokens of the requests that have no output yet, whether KV is on its way, and
        #: whether it is a prompt for another worker, whose one token is not used.
        self._pending: dict[str, tuple[int, bool, bool]] = {}
        self._awaited = 0
        self._samples = deque([_Sample(now, 0, 0, 0, 0, 0, 0)], maxlen=SAMPLES_MAX)

    def added(self, request: EngineRequest) -> None:
        """It was given to the engine."""
        if len(self._pending) >= PENDING_MAX:
            return
        awaited = request.role is Role.DECODE and request.ticket is not None
        for_another = request.role is Role.PREFILL
        self._pending[request.key] = (len(request.prompt_ids), awaited, for_another)
        self._awaited += awaited

    def dropped(self, key: str) -> None:
        """It was taken from the engine. Idempotent."""
        self._awaited -= self._pending.pop(key, (0, False, False))[1]

    def stepped(self, batch: Batch) -> None:
        """One step of the engine."""
        generated, streams = 0, len(batch.outputs)
        for output in batch.outputs:
            known = self._pending.pop(output.key, None) if self._pending else None
            if known is not None and known[2]:
                streams -= 1
            else:
                generated += len(output.token_ids)
            if known is not None:
                self._awaited -= known[1]
                if not output.error:
                    self.prefilled += max(0, known[0] - output.cached_tokens)
        if generated:
            self.decoded += generated
            self._outputs += streams
            self._steps += 1
        if batch.drafts is not None:
            _add(self.drafted, batch.drafts.drafted)
            _add(self.accepted, batch.drafts.accepted)

    def report(self, now: float, sent: int, gpu: GpuReading | None) -> PhaseReport:
        """`sent`: handoffs that others have not taken yet. `gpu`: None where there is none."""
        while len(self._samples) > 1 and now - self._samples[1].at >= WINDOW_SECONDS:
            self._samples.popleft()
        first = self._samples[0]
        counted = self.prefilled, self.decoded, self._outputs, self._steps
        sample = _Sample(now, *counted, sum(self.drafted), sum(self.accepted))
        if now - self._samples[-1].at >= WINDOW_SECONDS / SAMPLES_MAX:
            self._samples.append(sample)
        seconds, steps = max(0.1, now - first.at), self._steps - first.steps
        outputs, drafted = self._outputs - first.outputs, sample.drafted - first.drafted
        return PhaseReport(
            prefill_tokens_per_s=(self.prefilled - first.prefilled) / seconds,
            decode_tokens_per_s=(self.decoded - first.decoded) / seconds,
            batch=outputs / steps if steps else 0.0,
            handoffs=self._awaited + sent,
            gpu_busy=-1.0 if gpu is None else gpu.busy,
            gpu_memory_busy=-1.0 if gpu is None else gpu.memory_busy,
            accepted=(sample.accepted - first.accepted) / drafted if drafted else -1.0,
            tokens_per_output=(self.decoded - first.decoded) / outputs if outputs else 0.0,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert self._awaited == sum(awaited for _, awaited, _ in self._pending.values())
        assert len(self._pending) <= PENDING_MAX


def _add(totals: list[int], counts: tuple[int, ...]) -> None:
    """Adds one by one; a longer draft has further positions."""
    totals += [0] * (len(counts) - len(totals))
    for at, count in enumerate(counts):
        totals[at] += count

"""All that the router has learned, in one place. Reading changes nothing.

Learned values: prefill seconds by prompt length and worker (P's, and D's own for local prefill),
decode step by batch, output length by class, bytes a second by pair, what is left between P's end
and D's first token beside what the wire needs, and how long a request stays on D.
"""

from __future__ import annotations

from typing import Any

from common.config import AdmissionConfig
from common.messages import KvReport
from services.router.estimators.by_size import BySize
from services.router.estimators.output_length import OutputLength
from services.router.estimators.pair_bandwidth import PairBandwidth
from services.router.estimators.prefill_rate import PrefillRate
from services.router.estimators.ratio import Ratio

PAIRS_SHOWN = 16


class Estimates:
    """`prefill`, `local_prefill`: on prefill and on decode workers. Seconds, tokens, bytes."""

    def __init__(self, config: AdmissionConfig) -> None:
        memory = config.estimate_memory
        rate = config.prior_prefill_tokens_per_s
        self.prefill = PrefillRate(memory, rate)
        self.local_prefill = PrefillRate(memory, rate)
        self.output_length = OutputLength(config.prior_output_tokens)
        self.bandwidth = PairBandwidth(memory, config.prior_pair_bytes_per_s)
        self._step = BySize(memory, config.prior_decode_step_ms / 1000)
        self._tail = Ratio(memory)
        self._stay = Ratio(memory)

    # ------------------------------------------------------------ feeding

    def decoded(self, batch: int, tokens: int, seconds: float) -> None:
        """A stream ended that made `tokens` in `seconds`, its first one not counted, among `batch`
        streams."""
        if tokens > 0 and seconds > 0:
            self._step.add(batch, seconds, tokens)

    def moved(self, prefill: str, decode: str, report: KvReport) -> None:
        self.bandwidth.moved(prefill, decode, report)

    def handed(self, seconds: float, outlasting: float) -> None:
        """From P's end to D's first token, and how much of that, by its size, the KV needed for the
        wire alone."""
        self._tail.add(max(0.0, seconds - outlasting), 1)

    def stayed(self, seconds: float) -> None:
        """From placement to the end on D."""
        self._stay.add(max(0.0, seconds), 1)

    # ------------------------------------------------------------ reading

    @property
    def handoffs(self) -> int:
        """Handoffs measured."""
        return self._tail.count

    @property
    def local(self) -> PrefillRate:
        """How fast D computes prompts; P's curve until D has computed one."""
        return self.local_prefill if self.local_prefill.count else self.prefill

    def prefill_seconds(self, tokens: int, worker: str = "") -> float:
        return self.prefill.seconds(tokens, worker)

    def local_prefill_seconds(self, tokens: int, worker: str = "") -> float:
        return self.local.seconds(tokens, worker)

    def step_seconds(self, batch: int) -> float:
        """One decode step of a batch of this size."""
        return self._step.value(batch)

    def transfer_seconds(self, size: float, prefill: str = "", decode: str = "") -> float:
        """To move `size` bytes with nothing else on the pair's wire."""
        return size / self.bandwidth.bytes_per_s(prefill, decode)

    def outlasting_seconds(
        self, size: float, computing: float, prefill: str = "", decode: str = ""
    ) -> float:
        """How much longer `size` bytes are on the wire than P computes; both begin at once. Nothing
        until a wire was measured: what it needs is in the tail then."""
        if not len(self.bandwidth):
            return 0.0
        return max(0.0, self.transfer_seconds(size, prefill, decode) - computing)

    def tail_seconds(self) -> float:
        """What a remote prefill adds after P's end until D's first token, whatever its size; one
        decode step until measured."""
        return self._tail.value(0.0) or self.step_seconds(1)

    def stay_seconds(self, default: float) -> float:
        """A request's mean time on D."""
        return self._stay.value(default)

    def output_tokens(self, tenant: str, priority: int, max_tokens: int) -> int:
        return self.output_length.predict(tenant, priority, max_tokens)

    def shown(self) -> dict[str, Any]:
        """For operators."""
        return {
            "prefill_tokens_per_s": _rounded(self.prefill.by_length()),
            "local_prefill_tokens_per_s": _rounded(self.local_prefill.by_length()),
            "decode_step_ms": _rounded({k: v * 1000 for k, v in self._step.known().items()}, 2),
            "output_tokens_p90": self.output_length.known(),
            "pair_bytes_per_s": _rounded(self.bandwidth.known(PAIRS_SHOWN)),
            "handoff_tail_ms": round(self.tail_seconds() * 1000, 2),
            "stay_ms": round(self.stay_seconds(0.0) * 1000, 1),
        }


def _rounded(values: dict[Any, float], digits: int = 0) -> dict[str, float]:
    return {str(key): round(value, digits) for key, value in values.items()}

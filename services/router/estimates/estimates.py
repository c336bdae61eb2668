"""All that the router has learned, in one place. Reading changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from common.config import AdmissionConfig
from common.messages import KvReport
from common.net.admin_status import LearnedEstimates
from services.router.estimates.by_size import BySize
from services.router.estimates.output_length import OutputLength
from services.router.estimates.pair_bandwidth import PairBandwidth
from services.router.estimates.prefill_rate import PrefillRate
from services.router.estimates.ratio import Ratio
from services.router.estimates.step_rate import StepRate

PAIRS_SHOWN = 16
PRIOR_PULL_S = 0.01


class Estimates:
    """Every value is in seconds, tokens or bytes."""

    def __init__(self, config: AdmissionConfig) -> None:
        memory = config.estimate_memory
        rate = config.prior_prefill_tokens_per_s
        #: How fast prefill workers compute prompts.
        self.prefill = PrefillRate(memory, rate)
        #: How fast decode workers compute prompts themselves.
        self.local_prefill = PrefillRate(memory, rate)
        #: How many tokens a request will make.
        self.output_length = OutputLength(config.prior_output_tokens)
        #: Bytes per second of each pair of workers.
        self.bandwidth = PairBandwidth(memory, config.prior_pair_bytes_per_s)
        #: Seconds of a decode step by batch size: as measured, and as a curve with a speed for each
        #: worker.
        self._step = BySize(memory, config.prior_decode_step_ms / 1000)
        self.steps = StepRate(memory, config.prior_decode_step_ms / 1000)
        #: Seconds from P's end to D's first token, without the transfer that was still under way.
        self._handoff_latency = Ratio(memory)
        #: Seconds until the first data of a pull comes.
        self._pull_latency = Ratio(memory)
        #: Seconds that a request stays on D.
        self._decode_residence = Ratio(memory)

    # ------------------------------------------------------------ feeding

    def record_decode(self, worker: str, batch: int, tokens: int, seconds: float) -> None:
        """A stream ended that made `tokens` in `seconds` among `batch` streams; its first token
        and the time before it are not counted."""
        if tokens > 0 and seconds > 0:
            self._step.add(batch, seconds, tokens)
            self.steps.ended(worker, batch, tokens, seconds)

    def record_transfer(self, prefill: str, decode: str, report: KvReport) -> None:
        self.bandwidth.record_transfer(prefill, decode, report)

    def record_pull(self, source: str, worker: str, report: KvReport) -> None:
        """A worker got blocks out of the source's store."""
        self.bandwidth.record_transfer(source, worker, report)
        self._pull_latency.add(report.wait_ms / 1000, 1)

    def record_handoff(self, seconds: float, exposed_transfer_s: float) -> None:
        """`seconds` passed from P's end to D's first token. `exposed_transfer_s` of them are what
        the transfer takes by its size beyond P's computing."""
        self._handoff_latency.add(max(0.0, seconds - exposed_transfer_s), 1)

    def record_residence(self, seconds: float) -> None:
        """`seconds` passed from an attempt's placement to its end on D."""
        self._decode_residence.add(max(0.0, seconds), 1)

    # ------------------------------------------------------------ reading

    @property
    def handoffs(self) -> int:
        """Handoffs measured so far."""
        return self._handoff_latency.count

    @property
    def local(self) -> PrefillRate:
        """How fast D computes prompts; the curve of P until D has computed one."""
        return self.local_prefill if self.local_prefill.count else self.prefill

    def prefill_seconds(self, tokens: int, worker: str = "") -> float:
        return self.prefill.seconds(tokens, worker)

    def local_prefill_seconds(self, tokens: int, worker: str = "") -> float:
        return self.local.seconds(tokens, worker)

    def step_seconds(self, batch: int) -> float:
        """Seconds of one decode step of a batch of this size."""
        return self._step.value(batch)

    def transfer_seconds(self, size: float, prefill: str = "", decode: str = "") -> float:
        """Seconds to move `size` bytes when the pair moves nothing else."""
        return size / self.bandwidth.bytes_per_s(prefill, decode)

    def exposed_transfer_s(
        self, size: float, computing: float, prefill: str = "", decode: str = ""
    ) -> float:
        """Seconds that the transfer of `size` bytes lasts beyond P's computing; both begin at once.
        0 until a bandwidth was measured: until then the transfer is in `handoff_latency_s`."""
        if not len(self.bandwidth):
            return 0.0
        return max(0.0, self.transfer_seconds(size, prefill, decode) - computing)

    def handoff_latency_s(self) -> float:
        """Seconds from P's end to D's first token, beside any exposed transfer. One decode step
        until it was measured."""
        return self._handoff_latency.value(0.0) or self.step_seconds(1)

    def pull_latency_s(self) -> float:
        """Seconds that a pull takes beside the transfer."""
        return self._pull_latency.value(PRIOR_PULL_S)

    def decode_residence_s(self, default: float) -> float:
        """Mean seconds that a request stays on D."""
        return self._decode_residence.value(default)

    def output_tokens(self, tenant: str, priority: int, max_tokens: int) -> int:
        return self.output_length.predict(tenant, priority, max_tokens)

    def summary(self) -> LearnedEstimates:
        """The learned values for an operator, as `status` shows them."""
        return LearnedEstimates(
            prefill_tokens_per_s=_rounded(self.prefill.by_length()),
            local_prefill_tokens_per_s=_rounded(self.local_prefill.by_length()),
            decode_step_ms=_rounded({k: v * 1000 for k, v in self._step.known().items()}, 2),
            output_tokens_p90=self.output_length.known(),
            pair_bytes_per_s=_rounded(self.bandwidth.known(PAIRS_SHOWN)),
            handoff_latency_ms=round(self.handoff_latency_s() * 1000, 2),
            decode_residence_ms=round(self.decode_residence_s(0.0) * 1000, 1),
        )


def _rounded(
    values: Mapping[int, float] | Mapping[str, float], digits: int = 0
) -> dict[str, float]:
    return {str(key): round(value, digits) for key, value in values.items()}

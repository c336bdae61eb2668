"""When the first token of a request would come if it were admitted now.

TTFT = wait for a prefill worker + computing the prompt + handing the KV over, and whatever the wait
for decode slots and KV is longer than the wait for prefill: decode is judged at the time at which
prefill will be ready, not now, or the two pools oscillate. What decode frees meanwhile follows from
Little's law: a pool full of requests which stay `stay` seconds frees all of itself in that time.
"""

from __future__ import annotations

from typing import NamedTuple

from services.router.admission.fair_class import Ahead


class Pool(NamedTuple):
    """All ready decode workers: slots, and KV in tokens."""

    slots: float
    slots_free: float
    kv: float
    kv_free: float


class Situation(NamedTuple):
    """`computing`: prompt tokens given to workers and not computed. `ahead`: what waits before it.
    `seconds_per_token`: of one of `workers` at prompts like those ahead. `own_seconds`,
    `transfer_seconds`: of the request itself. `stay`: mean seconds of a request on D."""

    workers: int
    computing: int
    ahead: Ahead
    seconds_per_token: float
    own_seconds: float
    own_kv: int
    transfer_seconds: float
    decode: Pool
    stay: float


class Prediction(NamedTuple):
    """Seconds."""

    prefill_wait: float
    decode_wait: float
    prefill: float
    transfer: float

    @property
    def wait(self) -> float:
        return self.prefill_wait + max(0.0, self.decode_wait - self.prefill_wait)

    @property
    def ttft(self) -> float:
        return self.wait + self.prefill + self.transfer

    def sentence(self) -> str:
        return (
            f"its first token would come in {self.ttft * 1000:.0f} ms: "
            f"{self.prefill_wait * 1000:.0f} until a prefill worker is free, "
            f"{self.decode_wait * 1000:.0f} until a decode worker is, "
            f"{self.prefill * 1000:.0f} to compute the prompt, "
            f"{self.transfer * 1000:.0f} to hand it over"
        )


def predict(now: Situation) -> Prediction:
    work = now.computing + now.ahead.prompt_tokens
    prefill_wait = work * now.seconds_per_token / max(1, now.workers)
    return Prediction(prefill_wait, decode_wait(now), now.own_seconds, now.transfer_seconds)


def decode_wait(now: Situation) -> float:
    """Until slots and KV for all that is ahead and for this one are free."""
    pool = now.decode
    slots_short = now.ahead.requests + 1 - pool.slots_free
    kv_short = now.ahead.total_tokens + now.own_kv - pool.kv_free
    wait = 0.0
    if slots_short > 0:
        wait = slots_short * now.stay / max(1.0, pool.slots)
    if kv_short > 0:
        wait = max(wait, kv_short * now.stay / max(1.0, pool.kv - pool.kv_free))
    return wait

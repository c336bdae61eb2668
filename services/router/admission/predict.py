"""Predicts when the first token of a request would come if it were admitted now.

TTFT = the wait for a prefill worker + computing the prompt + handing the KV over. If the wait for
decode slots and KV is longer than the wait for prefill, the difference is added: decode is judged
at the time at which prefill will be ready, not now, or the two pools would oscillate. What decode
frees in the meantime follows from Little's law: a full pool whose requests stay for
`decode_residence_s` on average frees all of itself in that time.
"""

from __future__ import annotations

from typing import NamedTuple

from services.router.queue.fair_class import QueueAhead


class Pool(NamedTuple):
    """All ready decode workers: their slots, and their KV in tokens."""

    slots: float
    slots_free: float
    kv: float
    kv_free: float


class LoadSnapshot(NamedTuple):
    """The load at one instant, as one request meets it."""

    #: Ready workers of the pool that computes prompts, as many typical ones as are as fast.
    workers: float
    #: Prompt tokens given to these workers and not computed yet.
    computing: int
    #: What waits in the queue before the request.
    ahead: QueueAhead
    #: Seconds that one worker needs per prompt token, at prompts like those ahead.
    seconds_per_token: float
    #: Seconds to compute the request's own prompt.
    own_seconds: float
    #: KV tokens that the request needs on its decode worker, and those before it on theirs.
    own_kv: int
    ahead_kv: float
    #: Seconds of the handoff that are not overlapped with computing the prompt.
    transfer_seconds: float
    decode: Pool
    #: Mean seconds that a request stays on a decode worker (W of Little's law).
    decode_residence_s: float


class Prediction(NamedTuple):
    """The terms of a predicted TTFT, in seconds."""

    prefill_wait: float
    decode_wait: float
    prefill: float
    transfer: float

    @property
    def wait(self) -> float:
        """Seconds until the request starts."""
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


def predict(load: LoadSnapshot) -> Prediction:
    tokens = load.computing + load.ahead.prompt_tokens
    prefill_wait = tokens * load.seconds_per_token / (load.workers or 1.0)
    return Prediction(prefill_wait, decode_wait(load), load.own_seconds, load.transfer_seconds)


def decode_wait(load: LoadSnapshot) -> float:
    """Seconds until slots and KV are free for the request and for all that is ahead of it."""
    pool, residence = load.decode, load.decode_residence_s
    slots_short = load.ahead.requests + 1 - pool.slots_free
    kv_short = load.ahead_kv + load.own_kv - pool.kv_free
    wait = 0.0
    if slots_short > 0:
        wait = slots_short * residence / max(1.0, pool.slots)
    if kv_short > 0:
        wait = max(wait, kv_short * residence / max(1.0, pool.kv - pool.kv_free))
    return wait

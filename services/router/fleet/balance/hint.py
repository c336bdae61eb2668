"""What the phases of a model's workers say together, in words: which one is full, and what to do.
Pure; for an operator, and nothing decides by it."""

from __future__ import annotations

from typing import NamedTuple

FULL = 0.8
SPARE = 0.4


class PhaseLoad(NamedTuple):
    """Of the ready workers of one role."""

    workers: int
    #: Share of them that compute a prompt, or of their slots that are in use.
    busy: float
    #: Tokens per second, of all of them.
    tokens_per_s: float
    #: Mean batch; 0 = none.
    batch: float
    #: Mean share of the time in which their GPUs computed, and used their memory; -1 = not known.
    gpu: float
    gpu_memory: float


def figures(prefill: PhaseLoad, decode: PhaseLoad, handoffs: int) -> str:
    """Both phases in figures."""
    slots = f"{decode.busy:.0%} of slots{_gpu(decode)}"
    parts = [
        f"prefill {prefill.tokens_per_s:.0f} tokens/s, {prefill.busy:.0%} busy{_gpu(prefill)}",
        f"decode {decode.tokens_per_s:.0f} tokens/s in batches of {decode.batch:.1f}, {slots}",
        f"{handoffs} handoffs in flight",
    ]
    return "; ".join(parts if prefill.workers else parts[1:])


def hint(prefill: PhaseLoad, decode: PhaseLoad, waiting: int) -> str:
    """Which phase holds the other up, and what helps."""
    if not decode.workers:
        return "no decode worker is ready, so nothing is served"
    waits = f", and {waiting} requests wait" if waiting else ""
    if prefill.workers and prefill.busy >= FULL and decode.busy < SPARE:
        return f"prefill holds decode up{waits}: one more worker should prefill"
    if prefill.workers and decode.busy >= FULL and prefill.busy < SPARE:
        return f"decode holds prefill up{waits}: one more worker should decode"
    if decode.busy >= FULL and (not prefill.workers or prefill.busy >= FULL):
        return f"all workers are busy{waits}: start more"
    if waiting:
        return f"{waiting} requests wait, though no phase is full; `explain` says for what"
    if decode.busy < SPARE and prefill.busy < SPARE:
        return "both phases have room to spare"
    return "the phases are in balance"


def _gpu(load: PhaseLoad) -> str:
    if load.gpu < 0:
        return ""
    return f", GPU {load.gpu:.0%}, its memory {load.gpu_memory:.0%}"

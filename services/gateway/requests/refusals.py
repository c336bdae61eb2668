"""The errors of a gateway that cannot serve, and defaults for what a router leaves unsaid."""

from __future__ import annotations

from common.errors import BatonError, Code
from common.messages import Fleet
from services.gateway.requests.request import WAITING, State

RETRY_SOON_MS = 1_000


def draining() -> BatonError:
    return BatonError(
        Code.DRAINING, "this gateway is stopping; try again", retry_after_ms=RETRY_SOON_MS
    )


def unreachable() -> BatonError:
    return BatonError(
        Code.ROUTER_UNREACHABLE,
        "no router answers; the request was not started",
        retry_after_ms=RETRY_SOON_MS,
    )


def no_token(seconds: float, state: State, worker: str) -> BatonError:
    """Of a request that waited for as long as it may. `worker`: the name of the one that has it."""
    if state in WAITING:
        sentence = f"the request waited {seconds:.0f} s, and no worker was found for it"
        return BatonError(Code.OVERLOADED, sentence, retry_after_ms=RETRY_SOON_MS)
    sentence = f"decode worker {worker} sent nothing for this request for {seconds:.0f} s"
    return BatonError(Code.WORKER_LOST, sentence)


def known_code(text: str) -> Code:
    """INTERNAL for a code that this version does not know."""
    return Code(text) if text in set(Code) else Code.INTERNAL


def with_last_known(fleet: Fleet, before: Fleet) -> Fleet:
    """`fleet` of a router that knows no decode worker yet, such as one that has just started, with
    what `before` says of decode workers."""
    return Fleet(
        ready=fleet.ready,
        prefill_ready=fleet.prefill_ready,
        decode_ready=fleet.decode_ready,
        max_model_len=before.max_model_len,
        model=fleet.model,
        reason=fleet.reason,
        restores=before.restores,
        adapters=before.adapters,
    )

"""What a gateway says by itself when it cannot serve, and how it reads what a router says."""

from __future__ import annotations

from common.errors import BatonError, Code
from common.messages import Fleet

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


def known_code(text: str) -> Code:
    return Code(text) if text in set(Code) else Code.INTERNAL


def with_length(fleet: Fleet, max_model_len: int) -> Fleet:
    """The last known length stands while a restarted router does not know it yet."""
    return Fleet(
        ready=fleet.ready,
        prefill_ready=fleet.prefill_ready,
        decode_ready=fleet.decode_ready,
        max_model_len=max_model_len,
        model=fleet.model,
        reason=fleet.reason,
    )

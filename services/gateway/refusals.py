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


def with_last_known(fleet: Fleet, was: Fleet) -> Fleet:
    """What is known of decode workers stands while a router knows of none."""
    return Fleet(
        ready=fleet.ready,
        prefill_ready=fleet.prefill_ready,
        decode_ready=fleet.decode_ready,
        max_model_len=was.max_model_len,
        model=fleet.model,
        reason=fleet.reason,
        restores=was.restores,
    )

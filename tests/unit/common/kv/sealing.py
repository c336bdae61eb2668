"""Messages as a sender makes them and a receiver reads them, with nothing around."""

from __future__ import annotations

from collections.abc import Callable

from common.kv.digest import HEADER_BYTES, NOT_YET, Arrival, Expected, Verdict, judge, seal
from common.kv.kernel import Bytes, Sum, sum_of


def sealed(message: Bytes, what: Expected, early_bytes: int = NOT_YET) -> Bytes:
    """The same buffer."""
    seal(message, what, sum_of(message[HEADER_BYTES : what.message_bytes]), early_bytes)
    return message


def looked_at(_: Expected, payload: Bytes) -> Sum:
    return sum_of(payload)


def judged(
    message: Bytes, transfer: int, slot: int, planned: Callable[[int], Expected | None]
) -> Arrival:
    return judge(message, transfer, slot, planned, looked_at)


def check(message: Bytes, expected: Expected) -> Verdict:
    """The verdict on a buffer in which exactly this message is expected."""

    def planned(index: int) -> Expected | None:
        return expected if index == expected.index else None

    return judged(message, expected.transfer, expected.index, planned).verdict

"""Messages as a sender makes them and a receiver reads them, with nothing around."""

from __future__ import annotations

from collections.abc import Callable

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import (
    HEADER_BYTES,
    NOT_YET,
    Arrival,
    ExpectedMessage,
    Verdict,
    verify_message,
    write_header,
)
from common.kv.checksum.kernel import sum_of


def with_header(
    message: Bytes, what: ExpectedMessage, early_bytes: int = NOT_YET, *, key: bytes = b""
) -> Bytes:
    """The same buffer."""
    total = sum_of(message[HEADER_BYTES : what.message_bytes])
    write_header(message, what, total, early_bytes, key=key)
    return message


def sum_only(_: ExpectedMessage, payload: Bytes) -> Sum:
    return sum_of(payload)


def verify(
    message: Bytes,
    transfer: int,
    slot: int,
    planned: Callable[[int], ExpectedMessage | None],
    *,
    key: bytes = b"",
) -> Arrival:
    return verify_message(message, transfer, slot, planned, sum_only, key=key)


def verdict_of(message: Bytes, expected: ExpectedMessage, *, key: bytes = b"") -> Verdict:
    """The verdict on a buffer in which exactly this message is expected."""

    def planned(index: int) -> ExpectedMessage | None:
        return expected if index == expected.index else None

    return verify(message, expected.transfer, expected.index, planned, key=key).verdict

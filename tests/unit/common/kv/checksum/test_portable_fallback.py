"""A process in which the loops cannot be compiled takes the portable ones, and says so once."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
from structlog.testing import capture_logs

from common.kv.checksum import kernel
from common.kv.checksum.definition import ROW_BYTES
from common.kv.checksum.kernel import PORTABLE, copy_pages
from tests.unit.common.kv.checksum import reference


@pytest.fixture(autouse=True)
def nothing_made_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "kernel", functools.cache(kernel.kernel.__wrapped__))


def test_where_memory_may_be_made_executable_the_loops_are_compiled() -> None:
    with capture_logs() as logs:
        assert kernel.kernel() is not PORTABLE
        assert kernel.kernel() is kernel.kernel()
    assert logs == []


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), RuntimeError("LLVM")])
@pytest.mark.parametrize("place", ["kernel._check_executable_memory", "codegen._compiled"])
def test_loops_that_cannot_be_compiled_are_replaced_and_one_sentence_says_why(
    monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(f"common.kv.checksum.{place}", refused)
    with capture_logs() as logs:
        assert kernel.kernel() is PORTABLE
        assert kernel.kernel() is PORTABLE
    (line,) = logs
    assert line["event"] == "checksum.slow"
    assert str(error) in line["sentence"]
    assert "MemoryDenyWriteExecute" in line["sentence"]


def test_the_portable_sum_is_of_the_bytes_that_reached_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P may overwrite a message that D still copies, and what D has then must fail."""
    source, target = np.zeros(ROW_BYTES, np.uint8), np.zeros(ROW_BYTES, np.uint8)
    at = np.zeros(1, np.int64)
    memmove = ctypes.memmove

    def overwritten_meanwhile(*arguments: int) -> None:
        memmove(*arguments)
        source[:] += 1

    monkeypatch.setattr(ctypes, "memmove", overwritten_meanwhile)
    monkeypatch.setattr(kernel, "kernel", lambda: PORTABLE)
    total = copy_pages(target, at, source, at, ROW_BYTES, nontemporal=False)
    assert total == reference.checksum(target.tobytes()) != reference.checksum(source.tobytes())

"""An engine that cannot start: its own words reach the daemon, from another process."""

from __future__ import annotations

import logging
import os

import pytest

from common.engine.vllm.start_failure import SENTENCE_MAX, collected_failures


@pytest.fixture(autouse=True)
def as_in_a_worker(caplog: pytest.LogCaptureFixture) -> None:
    """A gateway's text classes silence vLLM for the rest of their process."""
    caplog.set_level(logging.WARNING, logger="vllm")


def _fail(words: str) -> None:
    try:
        raise RuntimeError(words)
    except RuntimeError:
        logging.getLogger("vllm.some.part").exception("failed to start")


def test_nothing_said_is_an_empty_sentence() -> None:
    with collected_failures() as failures:
        logging.getLogger("vllm.some.part").error("an error without an exception")
        assert failures.first() == ""


def test_a_flood_of_failures_neither_blocks_nor_loses_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collected_failures() as failures:
        for count in range(1000):
            _fail(f"{count} " + "x" * 2 * SENTENCE_MAX)
        assert failures.first() == "0 " + "x" * (SENTENCE_MAX - 2)
    caplog.clear()


def test_the_handler_is_gone_afterwards() -> None:
    before = list(logging.getLogger("vllm").handlers)
    with collected_failures():
        pass
    assert logging.getLogger("vllm").handlers == before


def test_closing_twice_closes_nothing_of_others() -> None:
    """As `logging.shutdown` does at exit."""
    with collected_failures() as failures:
        pass
    others = os.pipe()
    failures.close()
    os.write(others[1], b"x")
    assert os.read(others[0], 1) == b"x"
    for descriptor in others:
        os.close(descriptor)

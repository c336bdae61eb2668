"""An engine that cannot start: its own words reach the daemon, from another process: the tests that
start something."""

from __future__ import annotations

import multiprocessing

from common.engine.vllm.start_failure import collected_failures
from tests.component.common.engine.apart import apart
from tests.unit.common.engine.vllm.test_start_failure import _fail

FORK = multiprocessing.get_context("fork")


def _in_child(words: str) -> None:
    child = FORK.Process(target=_fail, args=(words,))
    child.start()
    child.join()
    assert child.exitcode == 0


def _first_of_two_children() -> str:
    with collected_failures() as failures:
        _in_child("no room\nfor the cache")
        _in_child("and a later one")
        return failures.first()


def test_the_first_failure_of_a_forked_process_is_told_in_one_line() -> None:
    assert apart(_first_of_two_children) == "no room for the cache"

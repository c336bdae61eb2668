"""A test's kind is the directory it lives in: tests/<kind>/... carries the marker <kind>."""

import asyncio
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests import turns

# No test is about time: a busy machine makes any example slow.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Before numpy loads: OpenBLAS threads spin, and on a busy two-core machine they wait on each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

TESTS = Path(__file__).parent
# Engines are forked from this process, and a fork must not meet the threads and the locks of other
# tests, UCX's above all (`common.kv.transport.ucx`): so the tests that fork them run first. Tests
# that fork something else do it in a process of their own (`tests.component.common.engine.apart`).
FORKING = TESTS / "e2e" / "engine"
KINDS = frozenset({"unit", "component", "simulation", "integration", "faults", "e2e", "chaos"})
# Two processes run all tests (`make test`). Most of what starts vLLM stays in one of them, one
# engine or fleet after another, since two at a time would only wait for each other; so do the
# daemons of the integration tests, whose fleet is one for all. The families of models and the
# fleets with images go to the process that is through first, as does any other file.
ONE_AFTER_ANOTHER = {
    "e2e": "vllm",
    "e2e/images": "images",
    "zoo": "zoo",
    "hostile": "vllm",
    "integration": "daemons",
    "chaos": "daemons",
}

# They measure pauses, and the other process waits while they run: on two cores its engines are
# pauses, too.
ALONE = frozenset({TESTS / "integration" / "test_hostile.py"})


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A test that runs a command's `main` sets up the logs of this process, and they go to where
    that test was heard: the next one would log to a file that is closed."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        root.setLevel(level)
        ours = structlog.stdlib.ProcessorFormatter
        for handler in set(root.handlers) - set(handlers):
            if isinstance(handler.formatter, ours):
                root.removeHandler(handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Outside of the test's time limit."""
    with turns.turn(alone=item.path in ALONE):
        return (yield)


def pytest_sessionfinish() -> None:
    turns.tidy()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)
    for item in items:
        kind = item.path.relative_to(TESTS).parts[0]
        if kind in KINDS:
            item.add_marker(kind)


def _place(item: pytest.Item) -> int:
    """The longest first, so that no process is left with it at the end."""
    if FORKING in item.path.parents:
        return 0
    group = _group(item.path.relative_to(TESTS).parts)
    return {"vllm": 1, "daemons": 2, "zoo": 3, "images": 4}.get(group, 5)


def _group(parts: tuple[str, ...]) -> str:
    """The group of a file below `TESTS`; empty if it has none."""
    return ONE_AFTER_ANOTHER.get("/".join(parts[:2]), ONE_AFTER_ANOTHER.get(parts[0], ""))


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """What stays together: a group, or a file."""
        file = nodeid.split("::", maxsplit=1)[0]
        return _group(Path(file).parts[1:]) or file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _Scheduler(config, log)


def _refuse_bad_forks() -> None:
    """What is raised here becomes a warning that nobody caught it, which fails the test."""
    if os.getpid() != RUNNER or sys._getframe(1).f_code is STARTS_A_PROGRAM:
        return
    if "ucxx" in sys.modules:
        raise RuntimeError("a fork of the test runner would share the UCX workers of other tests")
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        raise RuntimeError(
            "a fork of the test runner would wait for ever for the OpenMP threads of its torch"
        )


RUNNER = os.getpid()
STARTS_A_PROGRAM = asyncio.create_subprocess_exec.__code__
"""uvloop forks for it, and the fork becomes another program at once."""
os.register_at_fork(before=_refuse_bad_forks)

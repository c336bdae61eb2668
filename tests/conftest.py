"""A test's kind is the directory it lives in: tests/<kind>/... carries the marker <kind>."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

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
# Two processes run all tests (`make test`). What starts vLLM stays in one of them, one engine or
# fleet after another, since two at a time would only wait for each other; so do the daemons of the
# integration tests, whose fleet is one for all. Any other file goes to whoever is free.
ONE_AFTER_ANOTHER = {
    "e2e": "vllm",
    "zoo": "vllm",
    "hostile": "vllm",
    "integration": "daemons",
    "chaos": "daemons",
}


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
    group = ONE_AFTER_ANOTHER.get(item.path.relative_to(TESTS).parts[0])
    return {"vllm": 1, "daemons": 2}.get(group or "", 3)


class _Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """What stays together: a group, or a file."""
        file = nodeid.split("::", maxsplit=1)[0]
        return ONE_AFTER_ANOTHER.get(Path(file).parts[1], file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _Scheduler(config, log)


def _refuse_bad_forks() -> None:
    """What is raised here becomes a warning that nobody caught it, which fails the test."""
    if os.getpid() != RUNNER:
        return
    if "ucxx" in sys.modules:
        raise RuntimeError("a fork of the test runner would share the UCX workers of other tests")
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() > 1:
        raise RuntimeError(
            "a fork of the test runner would wait for ever for the OpenMP threads of its torch"
        )


RUNNER = os.getpid()
os.register_at_fork(before=_refuse_bad_forks)

"""For tests that fork: the test runner holds sockets, UCX workers and threads of other tests, and a
fork of it may clean those up by its collector, through descriptors that both share."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
SPAWN = multiprocessing.get_context("spawn")


def apart(call: Callable[[], Result]) -> Result:
    """What `call`, a function of a module, returns or raises in a new process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=SPAWN) as pool:
        return pool.submit(call).result()

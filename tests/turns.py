"""Tests that run alone, while the other processes of a test run wait.

Each test holds one lock, which those that run alone do not share. Who waits for it holds the gate
before it, so that nobody else begins meanwhile. The locks are files, of one run each.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, flock
from pathlib import Path

RUN = "PYTEST_XDIST_TESTRUNUID"
LOOK_SECONDS = 0.01
WAIT_SECONDS = 600.0
"""After so long a test runs in company: a process that hangs must not stop all others."""


@contextmanager
def turn(*, alone: bool, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """One test's. Without other processes there is nothing to wait for."""
    if not os.environ.get(RUN):
        yield
        return
    (gate_file, lock_file), until = _files(), time.monotonic() + wait_seconds
    with ExitStack() as gate, ExitStack() as lock:
        gate.enter_context(_locked(gate_file, LOCK_EX, until))
        lock.enter_context(_locked(lock_file, LOCK_EX if alone else LOCK_SH, until))
        if not alone:
            gate.close()
        yield


def tidy() -> None:
    """At the end of a process. Another one that still runs makes its files anew."""
    for file in _files():
        file.unlink(missing_ok=True)


def _files() -> tuple[Path, Path]:
    path = Path(tempfile.gettempdir()) / f"baton-tests-{os.environ.get(RUN)}"
    return path.with_suffix(".gate"), path.with_suffix(".lock")


@contextmanager
def _locked(path: Path, how: int, until: float) -> Iterator[None]:
    """Unlocks by itself: an engine that is forked meanwhile has the file open, too."""
    with path.open("ab") as file:
        while True:
            try:
                flock(file, how | LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    break
                time.sleep(LOOK_SECONDS)
        try:
            yield
        finally:
            flock(file, LOCK_UN)

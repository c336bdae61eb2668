"""Tests that measure run alone, whatever the other processes of a test run do."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path

import pytest

from tests import turns


class Other:
    """A test of another process. It ends when it is told."""

    def __init__(self, *, alone: bool) -> None:
        self.begun, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(alone,), daemon=True)
        self._thread.start()

    def _run(self, alone: bool) -> None:
        with turns.turn(alone=alone):
            self.begun.set()
            self._over.wait(30)

    def end(self) -> None:
        self._over.set()
        self._thread.join(30)


def wait_for_the_gate(folder: Path) -> None:
    """Until somebody waits to be alone."""
    until, gate = time.monotonic() + 30, folder / "baton-tests-one.gate"
    with gate.open("ab") as file:
        while time.monotonic() < until:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                return
            flock(file, LOCK_UN)
            time.sleep(0.01)
    raise AssertionError("nobody waits")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(turns.RUN, "one")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_ordinary_tests_run_beside_each_other() -> None:
    with turns.turn(alone=False):
        other = Other(alone=False)
        assert other.begun.wait(30)
        other.end()


def test_one_that_is_to_run_alone_waits_and_goes_first_and_nobody_begins_beside_it(
    folder: Path,
) -> None:
    with ExitStack() as ours:
        ours.enter_context(turns.turn(alone=False))
        measures = Other(alone=True)
        wait_for_the_gate(folder)
        later = Other(alone=False)
        assert not measures.begun.is_set()
        ours.close()
        assert measures.begun.wait(30)
        wait_for_the_gate(folder)
        assert not later.begun.is_set()
        measures.end()
        assert later.begun.wait(30)
        later.end()


@pytest.mark.usefixtures("folder")
def test_a_process_that_hangs_stops_nobody_for_ever() -> None:
    with turns.turn(alone=True), turns.turn(alone=False, wait_seconds=0.05):
        pass


def test_a_single_process_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(turns.RUN, raising=False)
    with turns.turn(alone=True), turns.turn(alone=True):
        pass

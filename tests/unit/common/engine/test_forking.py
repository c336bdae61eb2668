"""The parent's finalizers run in the parent."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterator

import pytest

from common.engine.forking import nothing_to_collect

FORK = multiprocessing.get_context("fork")


class Leftover:
    """Part of a cycle; says which process finalized it."""

    def __init__(self, pipe: int) -> None:
        self.itself = self
        self._pipe = pipe

    def __del__(self) -> None:
        os.write(self._pipe, f"{os.getpid()}\n".encode())


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def finalized_by(held: list[Leftover], read: int) -> list[int]:
    """Forks a child that drops what is `held` and collects; the processes that finalized."""

    def drop_and_collect() -> None:
        held.clear()
        gc.collect()

    child = FORK.Process(target=drop_and_collect)
    child.start()
    child.join()
    assert child.exitcode == 0
    return [int(line) for line in os.read(read, 4096).split()]


@pytest.mark.usefixtures("no_collector")
def test_only_the_parent_finalizes_what_was_made_before_the_fork() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    Leftover(write)
    held = [Leftover(write)]
    with nothing_to_collect():
        assert finalized_by(held, read) == [os.getpid()]


@pytest.mark.usefixtures("no_collector")
def test_without_it_the_child_finalizes_too() -> None:
    read, write = os.pipe()
    Leftover(write)
    (who,) = finalized_by([], read)
    assert who != os.getpid()


def test_the_parent_collects_again_afterwards() -> None:
    with nothing_to_collect():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0

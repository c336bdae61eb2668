"""The parent's finalizers run in the parent."""

from __future__ import annotations

import gc
import multiprocessing
import os

from common.engine.forking import nothing_to_collect
from tests.component.common.engine.apart import apart

FORK = multiprocessing.get_context("fork")


class Leftover:
    """Part of a cycle; says which process finalized it."""

    def __init__(self, pipe: int) -> None:
        self.itself = self
        self._pipe = pipe

    def __del__(self) -> None:
        os.write(self._pipe, f"{os.getpid()}\n".encode())


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


def guarded_finalizers() -> tuple[int, list[int]]:
    """The parent, and who finalized."""
    gc.disable()
    read, write = os.pipe()
    os.set_blocking(write, False)
    Leftover(write)
    held = [Leftover(write)]
    with nothing_to_collect():
        return os.getpid(), finalized_by(held, read)


def bare_finalizers() -> tuple[int, list[int]]:
    gc.disable()
    read, write = os.pipe()
    Leftover(write)
    return os.getpid(), finalized_by([], read)


def test_only_the_parent_finalizes_what_was_made_before_the_fork() -> None:
    parent, finalizers = apart(guarded_finalizers)
    assert finalizers == [parent]


def test_without_it_the_child_finalizes_too() -> None:
    parent, finalizers = apart(bare_finalizers)
    assert finalizers != [parent]


def test_the_parent_collects_again_afterwards() -> None:
    assert apart(frozen_counts) == (True, 0)


def frozen_counts() -> tuple[bool, int]:
    with nothing_to_collect():
        inside = gc.get_freeze_count() > 0
    return inside, gc.get_freeze_count()

"""Which request a gateway's loop works on at this moment, kept where it outlives the process.

A loop that hangs cannot say why, so the name of the request is written before each step of its
handler and taken back after it. What is still there when the process has ended is what it was
working on. The file has a fixed size and is written through shared memory: two copies of some 100
bytes for each step.
"""

from __future__ import annotations

import mmap
import types
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar

from common.process.owned_files import open_own

T = TypeVar("T")
SIZE_BYTES = 256
NOTHING = bytes(SIZE_BYTES)


class HandledRequest:
    """The writer's side. Raises OSError when the file cannot be ours."""

    def __init__(self, path: Path) -> None:
        with open_own(path, "a+") as file:
            file.truncate(SIZE_BYTES)
            self._memory = mmap.mmap(file.fileno(), SIZE_BYTES)
        #: What the process before this one was working on when it ended; empty: nothing.
        self.before = _text(self._memory[:])
        self._memory[:] = NOTHING

    @types.coroutine
    def watch(self, name: str, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Runs the coroutine, and has `name` in the file during each of its steps."""
        written = name.encode(errors="replace")[:SIZE_BYTES].ljust(SIZE_BYTES, b"\0")
        memory = self._memory
        sent: Any = None
        error: BaseException | None = None
        while True:
            memory[:] = written
            try:
                waits = work.send(sent) if error is None else work.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                memory[:] = NOTHING
            sent = error = None
            try:
                sent = yield waits
            except BaseException as raised:  # noqa: BLE001 - it is thrown into the coroutine
                error = raised


def handled_by(path: Path) -> str:
    """What the writer of this file works on, or was working on when it ended; empty: nothing."""
    try:
        with open_own(path, "rb") as file:
            return _text(file.read(SIZE_BYTES))
    except OSError:
        return ""


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def handled_path(run_dir: Path, name: str) -> Path:
    return run_dir / f"{name}.handled"

"""Finds why vLLM's engine could not start, which its processes only log.

The processes are forked with a logging handler of ours, which writes each error into a pipe.
Spawned processes (CUDA) inherit no handler; the reason is only in the worker's log then.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

READ_MAX = 4096
SENTENCE_MAX = 400


class StartFailures(logging.Handler):
    """Collects the exceptions that processes forked from here log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._read_fd, self._write_fd = os.pipe()
        self._closed = False
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line = " ".join(str(error).split()) or type(error).__name__
            with contextlib.suppress(OSError):
                os.write(self._write_fd, f"{line[:SENTENCE_MAX]}\n".encode())

    def first(self) -> str:
        """The sentence of the process that failed first; empty if none logged an exception."""
        try:
            data = os.read(self._read_fd, READ_MAX)
        except BlockingIOError:
            return ""
        return data.decode(errors="replace").partition("\n")[0]

    def close(self) -> None:
        """Idempotent, because `logging` closes every handler once more at exit, when the
        descriptors may belong to other files."""
        if not self._closed:
            self._closed = True
            os.close(self._read_fd)
            os.close(self._write_fd)
        super().close()


@contextlib.contextmanager
def collected_failures() -> Iterator[StartFailures]:
    """Surrounds the fork of the engine's processes."""
    handler = StartFailures()
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        handler.close()

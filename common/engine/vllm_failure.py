"""Why vLLM's engine could not start: it says so only in a log, and in other processes.

The processes are forked with a logging handler of ours; it writes the first error of each down a
pipe. Spawned ones (CUDA) inherit no handler: then the reason is in the worker's log alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

READ_MAX = 4096
SENTENCE_MAX = 400


class StartFailures(logging.Handler):
    """Collects what processes forked from here log with an exception."""

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
        """The sentence of the process that failed first; empty if none said anything."""
        try:
            said = os.read(self._read_fd, READ_MAX)
        except BlockingIOError:
            return ""
        return said.decode(errors="replace").partition("\n")[0]

    def close(self) -> None:
        """`logging` closes every handler once more at exit, when the descriptors are others'."""
        if not self._closed:
            self._closed = True
            os.close(self._read_fd)
            os.close(self._write_fd)
        super().close()


@contextlib.contextmanager
def collected_failures() -> Iterator[StartFailures]:
    """Around the fork of the engine's processes."""
    handler = StartFailures()
    logger = logging.getLogger("vllm")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        handler.close()

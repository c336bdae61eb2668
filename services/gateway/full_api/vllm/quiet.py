"""Importing vLLM on a thread beside a loop that carries streams.

Theory of operation: the import takes seconds, but Python's lock goes round every few milliseconds.
Two things would hold it for longer. Starting torch's libraries takes half a second; a call of the C
library does it beforehand without the lock. The import also makes several hundred thousand objects,
which live as long as the process, and each full collection of garbage would visit all of them; so
none happens meanwhile, and later ones leave these objects out.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


@contextmanager
def quietly() -> Iterator[None]:
    """What is imported and made within stays for good."""
    _open_torch()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _open_torch() -> None:
    """Without torch the import itself says so."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    open_library = ctypes.CDLL(None).dlopen
    open_library.argtypes, open_library.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    open_library(bytes(Path(spec.origin).parent / "lib" / "libtorch.so"), os.RTLD_NOW)

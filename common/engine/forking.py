"""A fork must not clean up after its parent."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def nothing_to_collect() -> Iterator[None]:
    """Around a fork. What the parent left behind is collected before it, in the parent; what the
    parent holds is never looked at by the child's collector. Otherwise a finalizer of the parent's
    (of sockets, pools and processes that the child has no threads for) runs in whichever thread of
    the child allocates next, and may wait forever."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

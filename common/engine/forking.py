"""Keeps a forked child from finalizing objects of its parent."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def nothing_to_collect() -> Iterator[None]:
    """Surrounds a fork. The parent's garbage is collected in the parent before it, and the child's
    collector never visits what the parent holds. Otherwise the child would run finalizers of
    sockets, pools and processes for which it has no threads, in whichever of its threads allocates
    next, and could wait forever. What this process shares with one that it was forked off itself
    stays out of its collections, by which it would be copied."""
    was_forked = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not was_forked:
            gc.unfreeze()

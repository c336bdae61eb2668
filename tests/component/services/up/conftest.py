"""Loops as `baton up` has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Children of uvloop inherit other descriptors than those of asyncio's own loop."""
    return {"uvloop": uvloop.new_event_loop}

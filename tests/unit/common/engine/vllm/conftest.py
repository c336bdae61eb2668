"""vLLM's own classes are looked at in unit tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def vllm_libraries() -> None:
    """Imports them: the first import in a process starts `ldconfig` to find a library."""
    import vllm.v1.kv_cache_interface  # noqa: F401

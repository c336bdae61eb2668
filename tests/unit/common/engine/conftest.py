"""vLLM's own classes are looked at in unit tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def vllm_libraries() -> None:
    """Imports them: the first import in a process starts `ldconfig` to find a library, and vLLM
    finds its platform. Not when tests are collected: engines that are forked later would inherit a
    vLLM that was imported without the settings of `prepare_process`."""
    import vllm.v1.worker.utils  # noqa: F401
    from vllm.platforms import current_platform

    current_platform.get_device_name()

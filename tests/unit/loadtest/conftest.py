"""Charts are drawn in unit tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def fonts() -> None:
    """Makes matplotlib's list of fonts: its first use on a machine starts a thread for it."""
    import matplotlib.font_manager  # noqa: F401

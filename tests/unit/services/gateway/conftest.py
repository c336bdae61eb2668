"""Fixtures of the gateway's unit tests."""

import pytest

from tests.rigs.light_text import light, model_folder
from tests.unit.services.gateway.gate import Gate

__all__ = ["gate", "light", "model_folder"]


@pytest.fixture
def gate() -> Gate:
    """A gateway's core that has nothing to do yet."""
    return Gate()

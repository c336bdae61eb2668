"""Fixtures of the router's unit tests."""

import pytest

from tests.unit.services.router.rig import Rig, standard


@pytest.fixture
def rig() -> Rig:
    """As `standard` makes it."""
    return standard()

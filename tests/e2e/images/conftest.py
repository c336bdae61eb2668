"""One tiny vision model for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.vision import vision_model


@pytest.fixture(scope="package")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model(tmp_path_factory.mktemp("vision"))

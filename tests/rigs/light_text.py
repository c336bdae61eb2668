"""The light text layer over the embedded model, made once per test run."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.model.embedded import ensure_embedded_model
from services.gateway.text.light import LightText


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_embedded_model(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def light(model_folder: Path) -> LightText:
    return LightText(model_folder)

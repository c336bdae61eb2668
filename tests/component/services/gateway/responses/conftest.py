"""Fixtures: a gateway that stores responses, and what answers behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.security.api_keys import KeyRecord, edited, new_key
from tests.component.services.gateway.responses.standins import Standin, behind
from tests.component.services.gateway.rig import MakeRig, Rig


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, Any]:
    return {"path": str(tmp_path / "jobs"), "lease_ms": 1000.0}


@pytest.fixture
def standin() -> Iterator[Standin]:
    """After a test that fails, what it holds does not hold up the end of its gateway."""
    standin = Standin()
    yield standin
    standin.release.set()


@pytest.fixture
async def kept(make_rig: MakeRig, jobs: dict[str, Any], standin: Standin) -> Rig:
    return await behind(make_rig, standin, jobs=jobs)


@pytest.fixture
def two_keys(tmp_path: Path) -> tuple[str, list[dict[str, str]]]:
    """The file, and the headers of each."""
    keys, headers = tmp_path / "keys.json", []
    for _ in range(2):
        key, key_id, sha256 = new_key()
        headers.append({"Authorization": f"Bearer {key}"})
        with edited(keys) as found:
            found.append(KeyRecord(id=key_id, sha256=sha256, tenant="t", priority="interactive"))
    return str(keys), headers

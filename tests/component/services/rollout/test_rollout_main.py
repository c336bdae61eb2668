"""How a worker is restarted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from services.rollout.main import restart
from services.router.admin.verb import View
from services.router.admin.verbs import workers
from tests.unit.services.router.rig import standard


@pytest.mark.parametrize(
    ("configured", "started_as"), [("", "decode"), ("decode", "decode"), ("prefill", "prefill")]
)
def test_a_command_names_the_unit_whatever_role_the_worker_has_now(
    tmp_path: Path, configured: str, started_as: str
) -> None:
    rig = standard()
    (row,) = workers.run(View(rig.core.shared, rig.now, {}), {"role": "decode"})
    written = tmp_path / "unit"
    command = f"sh -c 'echo baton-{{role}}@{{name}} > {written}'"
    restart(msgspec.structs.replace(row, configured_role=configured), command)
    assert written.read_text() == f"baton-{started_as}@d0\n"

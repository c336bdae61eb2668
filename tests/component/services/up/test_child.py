"""A daemon whose log would be written through a link is not started, and the path is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import BatonError
from common.messages import Role
from services.up.child import ChildProcess
from services.up.plan import Child


@pytest.mark.parametrize("trap", ["logs", "logs/r0.log"])
async def test_a_log_that_is_a_link_is_named_and_nothing_is_started(
    tmp_path: Path, trap: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if trap == "logs":
        elsewhere.mkdir()
    else:
        elsewhere.write_text("precious")
        (tmp_path / "logs").mkdir(mode=0o750)
    (tmp_path / trap).symlink_to(elsewhere)
    process = ChildProcess(
        Child(Role.ROUTER, "r0"),
        tmp_path / "fleet.toml",
        tmp_path,
        on_status=lambda _: None,
        on_ready=lambda: None,
        on_beat=lambda: None,
        watchdog_seconds=0.0,
    )
    try:
        with pytest.raises(BatonError) as refused:
            await process.spawn()
        assert not process.running
    finally:
        process.close()
    assert refused.value.message.startswith(f"cannot start r0: {tmp_path / trap}: ")
    assert "symbolic link" in refused.value.message
    assert elsewhere.is_dir() or elsewhere.read_text() == "precious"

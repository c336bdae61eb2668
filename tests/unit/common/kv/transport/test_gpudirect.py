"""When network cards read GPU memory: by a module of the kernel, or by dma-buf."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.kv.transport.gpudirect import read_gpudirect

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04"


@pytest.mark.parametrize(
    ("module", "driver", "kernel", "there"),
    [
        ("nvidia_peermem", CLOSED, "5.4.0", True),
        ("nv_peer_mem", CLOSED, "5.4.0", True),
        ("nvidia", OPEN, "5.12.0-generic", True),
        ("nvidia", OPEN, "6.1", True),
        ("nvidia", OPEN, "5.11.9", False),
        ("nvidia", CLOSED, "6.1", False),
        ("nvidia", "", "", False),
    ],
)
def test_what_is_needed(tmp_path: Path, module: str, driver: str, kernel: str, there: bool) -> None:
    (tmp_path / "sys/module" / module).mkdir(parents=True)
    for name, text in (("driver/nvidia/version", driver), ("sys/kernel/osrelease", kernel)):
        file = tmp_path / "proc" / name
        if text:
            file.parent.mkdir(parents=True)
            file.write_text(text)
    assert read_gpudirect(tmp_path).there is there

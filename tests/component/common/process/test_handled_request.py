"""What a process worked on when it ended can be read afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common.process.handled_request import SIZE_BYTES, HandledRequest, handled_by, handled_path

HANGS = """
import asyncio, sys
from pathlib import Path
from common.process.handled_request import HandledRequest

async def hang():
    await asyncio.sleep(0)
    print("hangs", flush=True)
    while True:
        pass

async def main():
    await HandledRequest(Path(sys.argv[1])).watch("r7 POST /v1/responses 8192 bytes", hang())

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return handled_path(tmp_path, "g0")


async def test_it_is_named_in_each_step_and_only_then(path: Path) -> None:
    seen: list[str] = []
    record = HandledRequest(path)
    turn = asyncio.Event()

    async def work() -> int:
        seen.append(handled_by(path))
        await turn.wait()
        seen.append(handled_by(path))
        return 7

    task = asyncio.ensure_future(record.watch("r1 POST /v1/x 10 bytes", work()))  # noqa: TID251 - a handler
    await asyncio.sleep(0)
    assert handled_by(path) == ""
    turn.set()
    assert await task == 7
    assert seen == ["r1 POST /v1/x 10 bytes"] * 2
    assert handled_by(path) == ""


async def test_errors_and_cancellation_pass_through(path: Path) -> None:
    record = HandledRequest(path)
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(handled_by(path))

    with pytest.raises(ValueError, match="no"):
        await record.watch("a", fails())
    task = asyncio.ensure_future(record.watch("b" * 2 * SIZE_BYTES, waits()))  # noqa: TID251 - a handler
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["b" * SIZE_BYTES]
    assert handled_by(path) == ""


def test_it_outlives_a_process_that_hangs(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HANGS, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"hangs\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert handled_by(path) == "r7 POST /v1/responses 8192 bytes"
    assert HandledRequest(path).before == "r7 POST /v1/responses 8192 bytes"
    assert handled_by(path) == ""


def test_where_there_is_no_file_nothing_is_told(path: Path) -> None:
    assert handled_by(path) == ""

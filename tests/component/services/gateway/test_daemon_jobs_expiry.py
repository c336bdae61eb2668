"""Files of clients are deleted when their time is over, from the table and from the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import aiohttp

from tests.component.services.gateway.rig import MakeRig
from tests.rigs.peers import WAIT_SECONDS


async def test_a_file_whose_time_is_over_is_gone_from_the_disk(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    folder = tmp_path / "jobs"
    rig = await make_rig(jobs={"path": str(folder), "lease_ms": 1000.0})
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", b"{}", filename="secret.jsonl")
    async with rig.http.post(f"{rig.url}/v1/files", data=form) as response:
        file_id = (await response.json())["id"]
    assert (folder / file_id).exists()
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    with ledger:
        ledger.execute("UPDATE files SET expires_ms = 1")
    ledger.close()
    async with asyncio.timeout(WAIT_SECONDS):
        while (folder / file_id).exists():
            await rig.turn()
    async with rig.http.get(f"{rig.url}/v1/files/{file_id}") as response:
        assert response.status == 404

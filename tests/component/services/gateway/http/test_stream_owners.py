"""Whose resumable stream it is, and what a client gets when that process cannot be reached.
`tests/integration` has two real processes."""

from __future__ import annotations

import socket
from pathlib import Path

import aiohttp
import pytest

from tests.component.services.gateway.rig import Rig


async def resumed(rig: Rig, stream_id: str) -> tuple[int, str, str]:
    response = await rig.http.get(f"{rig.url}/v1/streams/{stream_id}")
    error = (await response.json())["error"]
    return response.status, error["code"], error["message"]


def run_dir(rig: Rig) -> Path:
    return Path(rig.config.fleet.run_dir)


@pytest.mark.parametrize(
    "stream_id", ["r", "r.g0", "r.nobody", "cmpl-r.g0", "r..", "r.%2e%2e%2fg1", "r.G1"]
)
async def test_what_no_process_can_have_is_not_found_here(rig: Rig, stream_id: str) -> None:
    status, code, message = await resumed(rig, stream_id)
    assert (status, code) == (404, "not_found")
    assert "no stream with this id" in message


async def test_a_process_that_died_has_its_stream_no_more(rig: Rig) -> None:
    """It left its socket's file behind."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run_dir(rig) / "gateway.g1.http.sock"))
    status, code, message = await resumed(rig, "r.g1")
    assert (status, code) == (404, "not_found")
    assert message == "gateway g1, which had this stream, is gone"


async def test_what_another_process_sent_on_is_not_sent_further(rig: Rig) -> None:
    """The id names a process that is reachable: this one, under another name."""
    folder = run_dir(rig)
    (folder / "gateway.g1.http.sock").symlink_to(folder / "gateway.g0.http.sock")
    status, _, message = await resumed(rig, "r.g1")
    assert status == 404
    assert "no stream with this id" in message


async def test_the_socket_serves_the_api_and_goes_with_the_process(rig: Rig) -> None:
    path = run_dir(rig) / "gateway.g0.http.sock"
    assert path.stat().st_mode & 0o777 == 0o660
    connector = aiohttp.UnixConnector(str(path))
    async with aiohttp.ClientSession(connector=connector) as session:
        response = await session.get("http://g0/live")
        assert response.status == 200
    await rig.gateway.stop()
    assert not path.exists()

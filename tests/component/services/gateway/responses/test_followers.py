"""A follower reads the ledger when there is something new, and misses nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from common.clock import SystemClock
from common.errors import BatonError, Code
from services.gateway.jobs.ledger import Ledger
from services.gateway.responses import events
from services.gateway.responses.events import Page
from services.gateway.responses.followers import Followers
from tests.rigs.peers import WAIT_SECONDS


async def test_what_is_written_while_it_reads_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.responses.followers.POLL_SECONDS", 600.0)
    ledger = Ledger(tmp_path / "jobs")
    await ledger.open()
    followers, loop = Followers(ledger, SystemClock()), asyncio.get_running_loop()
    afters = []

    async def wake() -> None:
        followers.wake("r")

    def page(_: sqlite3.Connection, response_id: str, owner: str, __: int, after: int) -> Page:
        afters.append((response_id, owner, after))
        asyncio.run_coroutine_threadsafe(wake(), loop).result()
        name = b"%d" % len(afters)
        return Page([name], after + 1, is_whole=len(afters) > 1, is_over=len(afters) == 4)

    monkeypatch.setattr(events, "page", page)
    async with asyncio.timeout(WAIT_SECONDS):
        told = [piece async for piece in followers.follow("r", "a", 4)]
    assert told == [b"1", b"2", b"3", b"4"]
    assert afters == [("r", "a", after) for after in range(4, 8)]
    await ledger.close()


async def test_what_ends_it_is_told_and_what_delays_it_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path / "jobs")
    await ledger.open()
    monkeypatch.setattr("services.gateway.responses.followers.POLL_SECONDS", 600.0)
    followers = Followers(ledger, SystemClock())
    with pytest.raises(BatonError) as caught:
        await anext(followers.follow("r", "a", -1))
    assert caught.value.code is Code.NOT_FOUND
    errors = [BatonError(Code.STREAM_GONE, "gone"), BatonError(Code.INTERNAL, "full")]

    def page(_: sqlite3.Connection, __: str, ___: str, ____: int, after: int) -> Page:
        if after == 7:
            raise errors.pop(0)
        return Page([b"1"], 7, is_whole=False, is_over=False)

    monkeypatch.setattr(events, "page", page)
    async with asyncio.timeout(WAIT_SECONDS):
        _, last = [piece async for piece in followers.follow("r", "a", 4)]
    assert last.startswith(b"event: error\n")
    assert b'"sequence_number":8,"code":"stream_gone","message":"gone"' in last
    pieces = followers.follow("r", "a", 4)
    await anext(pieces)
    with pytest.raises(BatonError, match="full"):
        await anext(pieces)
    await ledger.close()

"""Responses that nobody waits for: each has one answer, whichever gateway dies."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from common.errors import BatonError, Code
from common.messages import PriorityClass
from services.gateway.responses import records
from tests.component.services.gateway.responses.standins import (
    BACKGROUND,
    Standin,
    at,
    behind,
    in_ledger,
    message,
    post,
    said,
    until,
    until_counted,
)
from tests.component.services.gateway.rig import MakeRig, Rig
from tests.rigs.peers import WAIT_SECONDS


async def test_it_is_answered_at_once_and_runs_as_its_keys_class(
    make_rig: MakeRig,
    jobs: dict[str, Any],
    standin: Standin,
    two_keys: tuple[str, list[dict[str, str]]],
) -> None:
    file, (ours, _) = two_keys
    rig = await behind(make_rig, standin, jobs=jobs, keys_file=file)
    standin.holds = True
    asked = await post(
        rig, headers=ours, instructions="be brief", metadata={"a": "b"}, **BACKGROUND
    )
    about = ("status", "output", "background", "store", "instructions", "metadata", "error")
    assert [asked[name] for name in about] == [
        "queued",
        [],
        True,
        True,
        "be brief",
        {"a": "b"},
        None,
    ]
    await standin.came.wait()
    assert (await at(rig, asked["id"], headers=ours))["status"] == "in_progress"
    assert standin.requests[0].origin.caller.priority is PriorityClass.INTERACTIVE
    standin.release.set()
    async with asyncio.timeout(WAIT_SECONDS):
        while (shown := await at(rig, asked["id"], headers=ours))["status"] != "completed":
            pass
    assert shown["output"] == [message("answer 1")]
    assert [shown[name] for name in ("id", "created_at")] == [
        asked[name] for name in ("id", "created_at")
    ]
    assert len(standin.requests) == 1
    assert standin.ended == standin.requests


async def test_it_may_go_on_from_another_and_be_gone_on_from(kept: Rig, standin: Standin) -> None:
    first = await post(kept, input="one")
    asked = await post(kept, input="two", previous_response_id=first["id"], **BACKGROUND)
    await until(kept, asked["id"], "completed")
    await post(kept, input="three", previous_response_id=asked["id"])
    assert said(standin.asked[-1]) == ["one", "answer 1", "two", "answer 2", "three"]


@pytest.mark.parametrize(("method", "end"), [("POST", "/cancel"), ("DELETE", "")])
async def test_what_clients_ask_for_waits_for_no_clock(
    make_rig: MakeRig,
    jobs: dict[str, Any],
    standin: Standin,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    end: str,
) -> None:
    monkeypatch.setattr("services.gateway.jobs.leases.POLL_SECONDS", 600.0)
    rig = await behind(make_rig, standin, jobs=jobs | {"lease_ms": 600_000.0})
    standin.holds = True
    asked = await post(rig, **BACKGROUND)
    async with asyncio.timeout(WAIT_SECONDS):
        await standin.came.wait()
        await at(rig, asked["id"] + end, method=method)
        await standin.cancelled.wait()


@pytest.mark.parametrize(("method", "end"), [("POST", "/cancel"), ("DELETE", "")])
async def test_one_that_is_cancelled_or_deleted_is_broken_off(
    kept: Rig, standin: Standin, jobs: dict[str, Any], method: str, end: str
) -> None:
    standin.holds = True
    asked = await post(kept, **BACKGROUND)
    await until(kept, asked["id"], "in_progress")
    await standin.came.wait()
    await at(kept, asked["id"] + end, method=method)
    async with asyncio.timeout(WAIT_SECONDS):
        await standin.cancelled.wait()
    if end:
        shown = await at(kept, asked["id"] + end, method=method)
        assert (shown["status"], shown["output"]) == ("cancelled", [])
    assert [row[0] for row in in_ledger(jobs, "SELECT length(request) FROM responses")] == [
        0
    ] * bool(end)
    assert len(standin.requests) == 1


async def test_a_gateway_that_stops_gives_it_back_and_another_runs_it(
    kept: Rig, make_rig: MakeRig, jobs: dict[str, Any], standin: Standin
) -> None:
    standin.holds = True
    asked = await post(kept, **BACKGROUND)
    await until(kept, asked["id"], "in_progress")
    await kept.stop()
    assert in_ledger(jobs, "SELECT status FROM responses") == [("queued",)]
    standin.release.set()
    again = await behind(make_rig, standin, jobs=jobs)
    shown = await until(again, asked["id"], "completed")
    assert shown["id"] == asked["id"]


async def test_one_of_a_dead_gateway_is_run_by_another(
    kept: Rig, standin: Standin, jobs: dict[str, Any]
) -> None:
    standin.holds = standin.lingers = True
    asked = await post(kept, **BACKGROUND)
    await until(kept, asked["id"], "in_progress")
    await standin.came.wait()
    standin.came.clear()
    in_ledger(jobs, "UPDATE responses SET held_by = 'dead', held_until_ms = 0, fence = fence + 1")
    async with asyncio.timeout(WAIT_SECONDS):
        await standin.cancelled.wait()
        await standin.came.wait()
    standin.release.set()
    shown = await until(kept, asked["id"], "completed")
    assert shown["output"] == [message("answer 2")]
    await until_counted(kept, "late", 1)
    await until_counted(kept, "reclaimed", 1)


@pytest.mark.parametrize(
    ("code", "times", "says"),
    [
        (Code.WORKER_LOST, 3, "server_error"),
        (Code.INVALID_REQUEST, 1, "invalid_prompt"),
        (Code.INTERNAL, 1, "server_error"),
    ],
)
async def test_a_failed_attempt_is_repeated_where_that_may_help(
    kept: Rig, standin: Standin, code: Code, times: int, says: str
) -> None:
    standin.errors = [BatonError(code, "no luck") for _ in range(5)]
    asked = await post(kept, **BACKGROUND)
    shown = await until(kept, asked["id"], "failed")
    assert shown["error"] == {"code": says, "message": "no luck"}
    assert len(standin.requests) == times


@pytest.mark.parametrize("code", [Code.RATE_LIMITED, Code.OVERLOADED])
async def test_a_refused_one_waits_and_is_tried_again(
    kept: Rig, standin: Standin, jobs: dict[str, Any], code: Code
) -> None:
    standin.errors = [BatonError(code, "busy", retry_after_ms=1) for _ in range(1)]
    asked = await post(kept, **BACKGROUND)
    await standin.came.wait()
    assert (await until(kept, asked["id"], "queued", "completed"))["status"] == "queued"
    waits = in_ledger(jobs, "SELECT retry_ms > 0 FROM responses")
    assert waits == [(code is Code.RATE_LIMITED,)], "else all of them wait"
    await until(kept, asked["id"], "completed")
    assert len(standin.requests) == 2


async def test_a_fleet_that_is_too_busy_is_left_alone(kept: Rig, standin: Standin) -> None:
    standin.errors = [BatonError(Code.OVERLOADED, "busy", retry_after_ms=600_000)]
    first = await post(kept, **BACKGROUND)
    await standin.came.wait()
    await until(kept, first["id"], "queued")
    second = await post(kept, **BACKGROUND)
    for asked in (first, second):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await until(kept, asked["id"], "in_progress", "completed")
    assert len(standin.requests) == 1


async def test_so_many_run_at_once_and_so_many_of_a_key_wait(
    make_rig: MakeRig, jobs: dict[str, Any], standin: Standin
) -> None:
    few = {"background_at_once": 1, "background_max": 2}
    rig = await behind(make_rig, standin, jobs=jobs | few)
    standin.holds = True
    first, second = await post(rig, **BACKGROUND), await post(rig, **BACKGROUND)
    error = await post(rig, 429, **BACKGROUND)
    assert "background_max" in error["error"]["message"]
    await until(rig, first["id"], "in_progress")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await until(rig, second["id"], "in_progress")
    assert len(standin.requests) == 1
    standin.release.set()
    await until(rig, second["id"], "completed")


async def test_a_defect_ends_the_response_and_not_the_gateway(
    kept: Rig, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("services.gateway.responses.background._answered", broken)
    asked = await post(kept, **BACKGROUND)
    shown = await until(kept, asked["id"], "failed")
    assert shown["error"]["message"] == "internal error"


async def test_one_whose_answer_the_ledger_does_not_take_is_not_lost(
    kept: Rig, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, tries = records.settle, list[int]()

    def full_once(*about: Any) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        return settle(*about)

    monkeypatch.setattr(records, "settle", full_once)
    asked = await post(kept, **BACKGROUND)
    await until(kept, asked["id"], "completed")
    assert (len(tries), len(standin.requests)) == (2, 1)


async def test_what_has_expired_is_gone_from_the_disk(kept: Rig, jobs: dict[str, Any]) -> None:
    await post(kept)
    in_ledger(jobs, "UPDATE responses SET expires_ms = 1")
    async with asyncio.timeout(WAIT_SECONDS):
        while in_ledger(jobs, "SELECT id FROM responses"):
            await kept.turn()


async def test_a_gateway_that_drains_takes_none(kept: Rig, standin: Standin) -> None:
    kept.gateway._ledger_parts.stop_taking()
    asked = await post(kept, **BACKGROUND)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await until(kept, asked["id"], "in_progress", "completed")
    assert standin.requests == []


async def test_each_outcome_is_counted_once(kept: Rig) -> None:
    for _ in range(3):
        asked = await post(kept, **BACKGROUND)
        await until(kept, asked["id"], "completed")
    await until_counted(kept, "answered", 3)
    await until_counted(kept, "late", 0)

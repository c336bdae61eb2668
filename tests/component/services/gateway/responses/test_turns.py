"""What is stored, and what is put in front of an input."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from common.errors import BatonError, Code
from services.gateway.responses import records
from tests.component.services.gateway.responses.standins import (
    BACKGROUND,
    URL,
    Standin,
    at,
    behind,
    in_ledger,
    message,
    post,
    said,
    until,
)
from tests.component.services.gateway.rig import MakeRig, Rig


async def test_an_answer_is_stored_unless_it_is_not_to_be(kept: Rig, standin: Standin) -> None:
    shown = await post(kept)
    assert (shown["store"], shown["background"], shown["status"]) == (True, False, "completed")
    assert await at(kept, shown["id"]) == shown
    assert standin.asked[0] == {"model": "m", "input": "hi"}
    unstored = await post(kept, store=False)
    assert standin.asked[1] == {"model": "m", "input": "hi"}
    assert await at(kept, unstored["id"], 404)


async def test_a_stream_is_stored_before_its_last_event(kept: Rig) -> None:
    body = {"model": "m", "input": "hi", "stream": True}
    ids = []
    async with kept.http.post(f"{kept.url}{URL}", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                ids.append(event.get("response", {}).get("id"))
                assert event.get("response", {"store": True})["store"] is True
                if event["type"] == "response.completed":
                    assert event["response"] == await at(kept, ids[-1])
    assert [one is not None for one in ids] == [True, True, False, True]


async def test_a_stream_that_fails_is_not_stored(
    kept: Rig, standin: Standin, jobs: dict[str, Any]
) -> None:
    standin.breaks = BatonError(Code.WORKER_LOST, "lost")
    body = {"model": "m", "input": "hi", "stream": True}
    async with kept.http.post(f"{kept.url}{URL}", json=body) as response:
        assert b"event: error" in await response.read()
    assert in_ledger(jobs, "SELECT * FROM responses") == []


async def test_a_full_ledger_costs_the_storing_and_not_the_answer(
    kept: Rig, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(records, "insert", full)
    shown = await post(kept)
    assert (shown["store"], shown["output"]) == (False, [message("answer 1")])
    await post(kept, 500, **BACKGROUND)


async def test_where_files_fill_the_quota_nothing_is_computed_in_vain(
    make_rig: MakeRig, jobs: dict[str, Any], standin: Standin
) -> None:
    rig = await behind(make_rig, standin, jobs=jobs | {"quota_mib": 1})
    in_ledger(jobs, "INSERT INTO files VALUES ('f', '', 'batch', 'f', 1048576, 0, 1e14, 0, 1)")
    error = await post(rig, 413)
    assert error["error"]["param"] == "store"
    assert standin.requests == []
    await post(rig, store=False)
    assert len(standin.requests) == 1


async def test_the_oldest_makes_room(
    make_rig: MakeRig, jobs: dict[str, Any], standin: Standin
) -> None:
    rig = await behind(make_rig, standin, jobs=jobs | {"responses_max": 2})
    first, second, third = [await post(rig) for _ in range(3)]
    await at(rig, first["id"], 404)
    for shown in (second, third):
        assert await at(rig, shown["id"]) == shown


async def test_a_chat_is_not_stored(kept: Rig, standin: Standin, jobs: dict[str, Any]) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "store": True}
    chat |= {"tools": [{"type": "function"}]}
    async with kept.http.post(f"{kept.url}/v1/chat/completions", json=chat) as response:
        assert response.status == 200
    assert standin.asked == [chat]
    assert in_ledger(jobs, "SELECT id FROM responses") == []


async def test_a_conversation_is_put_in_front_of_the_input(kept: Rig, standin: Standin) -> None:
    first = await post(kept, input="one", instructions="be brief")
    second = await post(
        kept, input=[{"role": "user", "content": "two"}], previous_response_id=first["id"]
    )
    third = await post(kept, input="three", previous_response_id=second["id"], store=False)
    assert [said(body) for body in standin.asked[1:]] == [
        ["one", "answer 1", "two"],
        ["one", "answer 1", "two", "answer 2", "three"],
    ]
    assert "instructions" not in standin.asked[1]
    assert "previous_response_id" not in standin.asked[1]
    assert second["previous_response_id"] == first["id"]
    assert (third["previous_response_id"], third["store"]) == (second["id"], False)
    await at(kept, third["id"], 404)
    page = await at(kept, f"{second['id']}/input_items?order=asc")
    assert said({"input": page["data"]}) == ["one", "answer 1", "two"]


async def test_it_goes_on_after_a_restart_and_without_what_was_before(
    kept: Rig, make_rig: MakeRig, jobs: dict[str, Any], standin: Standin
) -> None:
    first = await post(kept, input="one")
    second = await post(kept, input="two", previous_response_id=first["id"])
    await at(kept, first["id"], method="DELETE")
    await kept.stop()
    again = await behind(make_rig, standin, jobs=jobs)
    await post(again, input="three", previous_response_id=second["id"])
    assert said(standin.asked[-1]) == ["one", "answer 1", "two", "answer 2", "three"]


async def test_what_it_cannot_go_on_from_is_said(
    kept: Rig, standin: Standin, jobs: dict[str, Any]
) -> None:
    error = await post(kept, 404, previous_response_id="resp_none")
    assert "keep_hours" in error["error"]["message"]
    shown = await post(kept)
    in_ledger(jobs, "UPDATE responses SET expires_ms = 1")
    await post(kept, 404, previous_response_id=shown["id"])
    standin.holds = True
    asked = await post(kept, **BACKGROUND)
    await until(kept, asked["id"], "in_progress")
    error = await post(kept, 400, previous_response_id=asked["id"])
    assert "is in_progress" in error["error"]["message"]
    await at(kept, f"{asked['id']}/cancel", method="POST")
    error = await post(kept, 400, previous_response_id=asked["id"])
    assert "it is cancelled" in error["error"]["message"]
    assert len(standin.requests) == 2


async def test_a_conversation_is_bounded(
    make_rig: MakeRig, jobs: dict[str, Any], standin: Standin
) -> None:
    rig = await behind(make_rig, standin, jobs=jobs, body_bytes_max=5_000)
    first = await post(rig, input="x" * 3_000)
    error = await post(rig, 413, input="x" * 3_000, previous_response_id=first["id"])
    assert "gateway.body_bytes_max" in error["error"]["message"]
    assert len(standin.requests) == 1


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"store": "yes"}, "store"),
        ({"background": 1}, "background"),
        ({"previous_response_id": 3}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"background": True, "prompt": {"id": "x"}}, "prompt"),
        ({"background": True, "input": 5}, "input"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    kept: Rig, standin: Standin, wrong: dict[str, Any], param: str
) -> None:
    error = await post(kept, 400, **wrong)
    assert error["error"]["param"] == param
    assert standin.requests == []


async def test_what_is_no_object_is_refused_as_ever(kept: Rig) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b"[1]", b"{", b"\xff"):
        async with kept.http.post(f"{kept.url}{URL}", data=body, headers=headers) as response:
            assert response.status in (200, 400)

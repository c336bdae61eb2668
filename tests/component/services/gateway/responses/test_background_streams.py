"""Streams of the background: a client leaves and comes back, to any gateway, and misses nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import aiohttp
import pytest

from common.errors import BatonError, Code
from services.gateway.responses import events
from services.gateway.text.light import LightText
from tests.component.services.gateway.responses.standins import (
    URL,
    Standin,
    at,
    behind,
    beside,
    in_ledger,
    post,
    until,
)
from tests.component.services.gateway.rig import MakeRig, Rig, all_events, next_event
from tests.rigs.peers import WAIT_SECONDS

STREAMED: dict[str, Any] = {"background": True, "stream": True}
TYPES = ["created", "queued", "in_progress", "output_text.delta", "output_text.delta", "completed"]


@pytest.fixture
def standin(standin: Standin) -> Standin:
    standin.deltas, standin.holds_streams = ["{}a", "{}b"], True
    return standin


async def begun(rig: Rig, headers: dict[str, str] | None = None) -> aiohttp.ClientResponse:
    body = {"model": "m", "input": "hi"} | STREAMED
    response = await rig.http.post(f"{rig.url}{URL}", json=body, headers=headers)
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"].startswith("text/event-stream")
    return response


async def followed(
    rig: Rig, response_id: str, after: int | None = None, headers: dict[str, str] | None = None
) -> aiohttp.ClientResponse:
    url = f"{rig.url}{URL}/{response_id}?stream=true"
    if after is not None:
        url += f"&starting_after={after}"
    response = await rig.http.get(url, headers=headers)
    assert response.status == 200, await response.text()
    return response


async def some(response: aiohttp.ClientResponse, count: int) -> list[Any]:
    async with asyncio.timeout(WAIT_SECONDS):
        return [await next_event(response) for _ in range(count)]


async def rest(response: aiohttp.ClientResponse) -> list[Any]:
    async with asyncio.timeout(WAIT_SECONDS):
        return await all_events(response)


def numbers(told: list[Any]) -> list[int]:
    return [event["sequence_number"] for event in told]


def types(told: list[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in told]


async def left(rig: Rig) -> tuple[str, list[Any]]:
    """The id of a response whose client has seen the first of its two texts, and left; and what it
    has seen."""
    response = await begun(rig)
    seen = await some(response, 4)
    response.close()
    return seen[0]["response"]["id"], seen


async def lost(rig: Rig, standin: Standin) -> None:
    """Another process had it for the time of a lease, and died; it is run again."""
    standin.came.clear()
    in_ledger(
        {"path": rig.config.gateway.jobs.path},
        "UPDATE responses SET held_by = 'dead', held_until_ms = 0, fence = fence + 1",
    )
    async with asyncio.timeout(WAIT_SECONDS):
        await standin.came.wait()


# ---------------------------------------------------------------- one run


async def test_it_is_told_from_its_making_to_its_end(kept: Rig, standin: Standin) -> None:
    standin.release.set()
    told = await rest(await begun(kept, {"x-timings": "1"}))
    assert types(told) == TYPES
    assert numbers(told) == list(range(6))
    made, *_, ended = [event["response"] for event in told if "response" in event]
    assert (made["status"], made["background"], made["output"]) == ("queued", True, [])
    assert {e["response"]["id"] for e in told if "response" in e} == {made["id"]}
    assert {e["response"]["created_at"] for e in told if "response" in e} == {made["created_at"]}
    assert [told[at]["response"]["status"] for at in (1, 2)] == ["queued", "in_progress"]
    assert ended == await at(kept, made["id"])
    assert standin.asked == [{"model": "m", "input": "hi", "stream": True}]
    assert await rest(await followed(kept, made["id"])) == told
    then = await post(kept, previous_response_id=made["id"])
    assert then["previous_response_id"] == made["id"]


async def test_a_client_leaves_and_goes_on_where_it_was(kept: Rig, standin: Standin) -> None:
    response_id, seen = await left(kept)
    again = await followed(kept, response_id, after=1)
    assert await some(again, 2) == seen[2:]
    waits = await followed(kept, response_id, after=3)
    standin.release.set()
    told = await rest(again)
    assert numbers(seen + told) == list(range(6))
    assert await rest(waits) == told
    for after in range(6):
        assert await rest(await followed(kept, response_id, after)) == (seen + told)[after + 1 :]
    assert not standin.cancelled.is_set()
    assert len(standin.requests) == 1


@pytest.mark.parametrize(("method", "end"), [("POST", "/cancel"), ("DELETE", ""), ("", "")])
async def test_a_follower_in_its_process_waits_for_no_clock(
    kept: Rig, standin: Standin, monkeypatch: pytest.MonkeyPatch, method: str, end: str
) -> None:
    monkeypatch.setattr("services.gateway.responses.followers.POLL_SECONDS", 600.0)
    response = await begun(kept)
    seen = await some(response, 4)
    if method:
        await at(kept, seen[0]["response"]["id"] + end, method=method)
    else:
        standin.release.set()
    assert types(await rest(response))[-1] == {"": "completed", "POST": "failed"}.get(
        method, "error"
    )


async def test_one_that_waits_is_cancelled_at_once(
    kept: Rig, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.responses.followers.POLL_SECONDS", 600.0)
    kept.gateway._ledger_parts.stop_taking()
    response = await begun(kept)
    made, _ = await some(response, 2)
    await at(kept, f"{made['response']['id']}/cancel", method="POST")
    (last,) = await rest(response)
    assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")
    assert standin.requests == []


async def test_a_cancelled_one_ends_with_its_status(kept: Rig, standin: Standin) -> None:
    response = await begun(kept)
    (made, *_) = await some(response, 4)
    shown = await at(kept, f"{made['response']['id']}/cancel", method="POST")
    (last,) = await rest(response)
    assert (last["type"], last["sequence_number"]) == ("response.failed", 4)
    assert last["response"] == shown
    assert shown["status"] == "cancelled"
    async with asyncio.timeout(WAIT_SECONDS):
        await standin.cancelled.wait()
    assert types(await rest(await followed(kept, shown["id"]))) == [*TYPES[:4], "failed"]


async def test_one_that_was_cut_at_its_length_says_so(kept: Rig, standin: Standin) -> None:
    standin.status = "incomplete"
    standin.release.set()
    last = (await rest(await begun(kept)))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


async def test_one_that_cannot_be_answered_ends_with_the_error(kept: Rig, standin: Standin) -> None:
    standin.errors = [BatonError(Code.INVALID_REQUEST, "no luck")]
    told = await rest(await begun(kept))
    assert types(told) == ["created", "queued", "failed"]
    assert told[-1]["response"]["error"] == {"code": "invalid_prompt", "message": "no luck"}


async def test_a_deleted_one_ends_with_an_error(
    kept: Rig, standin: Standin, jobs: dict[str, Any]
) -> None:
    response = await begun(kept)
    (made, *_) = await some(response, 4)
    await at(kept, made["response"]["id"], method="DELETE")
    (last,) = await rest(response)
    about = [last[name] for name in ("type", "code", "sequence_number")]
    assert about == ["error", "not_found", 4]
    await at(kept, f"{made['response']['id']}?stream=true", 404)
    async with asyncio.timeout(WAIT_SECONDS):
        await standin.cancelled.wait()
    assert in_ledger(jobs, "SELECT * FROM response_events") == []


async def test_its_events_expire_with_it(kept: Rig, standin: Standin, jobs: dict[str, Any]) -> None:
    standin.release.set()
    await rest(await begun(kept))
    assert in_ledger(jobs, "SELECT count(*) FROM response_events") == [(5,)]
    in_ledger(jobs, "UPDATE responses SET expires_ms = 1")
    async with asyncio.timeout(WAIT_SECONDS):
        while in_ledger(jobs, "SELECT number FROM response_events"):
            await kept.turn()


async def test_what_is_no_event_of_it_is_refused(kept: Rig, standin: Standin) -> None:
    response_id, _ = await left(kept)
    for wrong in ("4", "99", "-1", "x", "1.0", "", "9" * 30):
        error = await at(kept, f"{response_id}?stream=true&starting_after={wrong}", 400)
        assert error["error"]["param"] == "starting_after"
    standin.release.set()
    await until(kept, response_id, "completed")
    assert await rest(await followed(kept, response_id, after=5)) == []
    await at(kept, f"{response_id}?stream=true&starting_after=6", 400)


async def test_it_does_not_exist_for_another_key(
    make_rig: MakeRig,
    jobs: dict[str, Any],
    standin: Standin,
    two_keys: tuple[str, list[dict[str, str]]],
) -> None:
    file, (ours, theirs) = two_keys
    rig = await behind(make_rig, standin, jobs=jobs, keys_file=file)
    standin.release.set()
    told = await rest(await begun(rig, ours))
    response_id = told[0]["response"]["id"]
    for query in ("?stream=true", "?stream=true&starting_after=2"):
        await at(rig, response_id + query, 404, headers=theirs)
    assert await rest(await followed(rig, response_id, 2, ours)) == told[3:]


async def test_more_bytes_of_events_than_are_kept_end_the_stream_and_not_the_response(
    make_rig: MakeRig, jobs: dict[str, Any], standin: Standin
) -> None:
    standin.deltas, standin.holds_streams = [*["x" * 400_000] * 3, "y"], False
    rig = await behind(make_rig, standin, jobs=jobs | {"stream_mib_max": 1})
    told = await rest(await begun(rig))
    assert types(told) == [*TYPES[:5], "error"]
    assert numbers(told) == list(range(6))
    assert told[-1]["code"] == "stream_gone"
    assert "gateway.jobs.stream_mib_max" in told[-1]["message"]
    shown = await until(rig, told[0]["response"]["id"], "completed")
    (last,) = await rest(await followed(rig, shown["id"], after=5))
    assert (last["sequence_number"], last["response"]) == (6, shown)
    assert (await rest(await followed(rig, shown["id"], after=2)))[-1] == told[-1]


async def test_what_the_ledger_does_not_take_is_not_lost(
    kept: Rig, standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, tries = events.append, list[int]()

    def full_once(*about: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        append(*about)

    monkeypatch.setattr(events, "append", full_once)
    monkeypatch.setattr("services.gateway.jobs.leases.PAUSE_SECONDS", 0.0)
    standin.release.set()
    told = await rest(await begun(kept))
    assert (types(told), numbers(told)) == (TYPES, list(range(6)))


# ---------------------------------------------------------------- several gateways and runs


async def test_it_is_followed_at_another_gateway_while_it_runs_and_after(
    kept: Rig, standin: Standin, light: LightText
) -> None:
    response_id, seen = await left(kept)
    async with beside(kept, standin, light) as other:
        again = await followed(other, response_id, after=2)
        assert await some(again, 1) == seen[3:]
        standin.release.set()
        told = await rest(again)
        assert types(told) == TYPES[4:]
        await kept.stop()
        assert await rest(await followed(other, response_id)) == seen + told
    assert len(standin.requests) == 1


async def test_it_is_cancelled_at_another_gateway(
    kept: Rig, standin: Standin, light: LightText
) -> None:
    response = await begun(kept)
    (made, *_) = await some(response, 4)
    async with beside(kept, standin, light) as other:
        await at(other, f"{made['response']['id']}/cancel", method="POST")
        (last,) = await rest(response)
        assert last["response"]["status"] == "cancelled"


async def test_no_text_of_one_run_is_joined_to_that_of_another(
    kept: Rig, standin: Standin, jobs: dict[str, Any]
) -> None:
    standin.lingers = True
    response = await begun(kept)
    seen = await some(response, 4)
    response_id = seen[0]["response"]["id"]
    knows_nothing = await followed(kept, response_id, after=1)
    assert await some(knows_nothing, 2) == seen[2:]
    await lost(kept, standin)
    for client in (response, knows_nothing):
        (last,) = await rest(client)
        assert (last["type"], last["code"]) == ("error", "stream_gone")
        assert "without stream" in last["message"]
    for after in (2, 3):
        error = await at(kept, f"{response_id}?stream=true&starting_after={after}", 410)
        assert error["error"]["code"] == "stream_gone"
    standin.release.set()
    anew = await rest(await followed(kept, response_id))
    assert types(anew) == TYPES
    assert numbers(anew) == [0, 1, 4, 5, 6, 7]
    assert [event["delta"] for event in anew[3:5]] == ["2a", "2b"]
    assert await rest(await followed(kept, response_id, after=0)) == anew[1:]
    assert await rest(await followed(kept, response_id, after=5)) == anew[4:]
    (told,) = in_ledger(jobs, "SELECT sum(length(event)) FROM response_events")
    counted = "SELECT bytes - length(items) - length(shown) FROM responses"
    assert in_ledger(jobs, counted) == [told]


async def test_who_has_seen_no_run_is_told_the_next_one(kept: Rig, standin: Standin) -> None:
    standin.errors = [BatonError(Code.RATE_LIMITED, "busy", retry_after_ms=1)]
    standin.release.set()
    told = await rest(await begun(kept))
    assert (types(told), numbers(told)) == (TYPES, list(range(6)))
    assert [event["delta"] for event in told[3:5]] == ["2a", "2b"]


async def test_another_gateway_runs_it_when_the_first_stops(
    kept: Rig, standin: Standin, light: LightText
) -> None:
    response_id, _ = await left(kept)
    async with beside(kept, standin, light) as other:
        await kept.stop()
        standin.release.set()
        shown = await until(other, response_id, "completed")
        await at(other, f"{response_id}?stream=true&starting_after=3", 410)
        anew = await rest(await followed(other, response_id))
        assert anew[-1]["response"] == shown
        assert numbers(anew) == [0, 1, 4, 5, 6, 7]

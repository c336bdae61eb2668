"""Web pages: which may use a gateway, and what their browser must ask first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.messages import Submit
from tests.component.services.gateway.rig import MakeRig, Rig, delta, refuse_with

BODY: dict[str, Any] = {"model": "m", "prompt": "hi", "max_tokens": 2}
PAGE = "https://chat.example.com"
OTHER = "https://evil.example.com"
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"]


async def refusing(rig: Rig) -> Rig:
    """Its router refuses whatever reaches it, so that a missing check is an answer and no wait."""
    await rig.ready()
    rig.router.answer = refuse_with("queue_full")
    return rig


async def nothing_was_asked(rig: Rig) -> bool:
    await rig.turn()
    return not rig.router.bodies


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "kind", ["text/plain", "", "application/x-www-form-urlencoded", "text/plain; application/json"]
)
async def test_a_body_that_a_page_could_send_unasked_is_refused(
    rig: Rig, path: str, kind: str
) -> None:
    await refusing(rig)
    response = await rig.http.post(
        rig.url + path,
        data=json.dumps(BODY).encode(),
        headers={"Content-Type": kind} if kind else {},
        skip_auto_headers=["Content-Type"],
    )
    assert response.status == 415
    error = (await response.json())["error"]
    assert "application/json" in str(error)
    assert await nothing_was_asked(rig)


async def test_further_types_by_configuration(make_rig: MakeRig) -> None:
    types = ["application/json", "application/octet-stream"]
    rig = await refusing(await make_rig(body_types=types))
    for kind in ("application/octet-stream", "Application/JSON; charset=utf-8"):
        response = await rig.http.post(
            f"{rig.url}/v1/completions", data=json.dumps(BODY), headers={"Content-Type": kind}
        )
        assert response.status == 429


@pytest.mark.parametrize("origin", [OTHER, "null", "http://127.0.0.1:8000", PAGE + ".evil.com"])
async def test_a_page_that_is_not_listed_is_refused(make_rig: MakeRig, origin: str) -> None:
    rig = await refusing(await make_rig(cors_origins=[PAGE]))
    headers = {"Origin": origin}
    for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/health")):
        response = await rig.http.request(method, rig.url + path, json=BODY, headers=headers)
        assert response.status == 403
        assert (await response.json())["error"]["code"] == "origin_refused"
        assert "Access-Control-Allow-Origin" not in response.headers
    assert await nothing_was_asked(rig)


async def test_no_page_is_listed_by_default(rig: Rig) -> None:
    await refusing(rig)
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    assert (await rig.http.options(f"{rig.url}/v1/completions", headers=asked)).status == 403


@pytest.mark.parametrize(("allowed", "shown"), [(PAGE, PAGE), ("*", "*")])
async def test_a_listed_page_gets_its_permission_and_its_answers(
    make_rig: MakeRig, allowed: str, shown: str
) -> None:
    rig = await make_rig(cors_origins=[allowed])
    worker = await rig.worker()
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    permission = await rig.http.options(f"{rig.url}/v1/completions", headers=asked)
    assert permission.status == 204
    assert permission.headers["Access-Control-Allow-Origin"] == shown
    assert permission.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert permission.headers["Access-Control-Allow-Private-Network"] == "true"
    assert "POST" in permission.headers["Access-Control-Allow-Methods"]
    for stream in (False, True):
        background = rig.tasks.start("worker", _answer(rig, worker), ends=True)
        response = await rig.http.post(
            f"{rig.url}/v1/completions", json=BODY | {"stream": stream}, headers={"Origin": PAGE}
        )
        await background
        assert response.status == 200
        assert response.headers["Access-Control-Allow-Origin"] == shown
        assert "x-request-id" in response.headers["Access-Control-Expose-Headers"]
        assert response.headers["Vary"] == "Origin"
        await response.read()
    refused = await rig.http.get(f"{rig.url}/nothing", headers={"Origin": PAGE})
    assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (404, shown)


async def _answer(rig: Rig, worker: Any) -> None:
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "ok", finish_reason="length"))


async def test_a_permission_needs_no_key_and_gives_none(make_rig: MakeRig, keys_file: str) -> None:
    rig = await make_rig(cors_origins=[PAGE], keys_file=keys_file)
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    url = f"{rig.url}/v1/completions"
    assert (await rig.http.options(url, headers=asked)).status == 204
    assert (await rig.http.post(url, json=BODY, headers={"Origin": PAGE})).status == 401
    assert (await rig.http.options(url, headers={"Origin": PAGE})).status == 401


async def test_ignored_fields_are_named_in_the_answer_and_counted(make_rig: MakeRig) -> None:
    rig = await make_rig()
    worker = await rig.worker()
    for stream in (False, True):
        background = rig.tasks.start("worker", _answer(rig, worker), ends=True)
        response = await rig.post("/v1/completions", **BODY, stream=stream, mood=1, store=True)
        await background
        assert response.status == 200
        assert response.headers["x-ignored-fields"] == "mood, store"
        await response.read()
    assert rig.gateway.core.counters.ignored_fields == {"mood": 2, "store": 2}
    response = await rig.post("/v1/completions", **BODY, prompt_embeds="x")
    assert response.status == 400
    assert "x-ignored-fields" not in response.headers


async def test_unknown_fields_are_refused_where_that_is_configured(make_rig: MakeRig) -> None:
    rig = await refusing(await make_rig(unknown_fields="refuse"))
    response = await rig.post("/v1/completions", **BODY, mood=1)
    assert response.status == 400
    assert (await response.json())["error"]["param"] == "mood"


async def test_the_body_may_name_the_session_and_a_salt(rig: Rig) -> None:
    await refusing(rig)
    await rig.post("/v1/completions", **BODY, prompt_cache_key="agent-7")
    submit = await rig.router.next(Submit)
    assert submit.session == "agent-7"
    assert rig.router.bodies[submit.request_id].cache_salt is None
    await rig.post("/v1/completions", **BODY, session_id="s", cache_salt="tenant:other")
    submit = await rig.router.next(Submit)
    assert submit.session == "s"
    assert rig.router.bodies[submit.request_id].cache_salt == "anonymous/tenant:other"
    headers = {"x-session-id": "mine"}
    await rig.http.post(
        f"{rig.url}/v1/completions", json=BODY | {"session_id": "s"}, headers=headers
    )
    assert (await rig.router.next(Submit)).session == "mine"

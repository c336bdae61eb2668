"""What a client hears when it is not served, and that the daemon lives on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from common.messages import Beat, Cancel, Fleet, Leaving, Submit
from tests.component.services.gateway.rig import MakeRig, Rig, refuse_with

JSON = {"content-type": "application/json"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("code", "retry_after_ms", "status", "retry_after"),
    [
        ("queue_full", 1_200, 429, "2"),
        ("no_capacity", 0, 503, "1"),
        ("deadline_exceeded", 0, 504, None),
        ("a_code_of_the_future", 0, 500, None),
    ],
)
async def test_a_routers_refusal_becomes_its_http_error(
    rig: Rig, code: str, retry_after_ms: int, status: int, retry_after: str | None
) -> None:
    await rig.ready()
    rig.router.answer = refuse_with(code, retry_after_ms)
    for stream in (False, True):
        response = await rig.post("/v1/chat/completions", **CHAT, stream=stream)
        assert response.status == status
        assert response.headers.get("Retry-After") == retry_after
        error = (await response.json())["error"]
        assert error["message"] == "refused by the test"
        assert set(error) == {"message", "type", "param", "code"}


BAD: list[tuple[str, Any, int, str | None]] = [
    ("not json", b"{", 400, None),
    ("not an object", b"[]", 400, None),
    ("no body", b"", 400, None),
    ("not utf-8", b'{"model": "\xff"}', 400, None),
    ("deep", b'{"messages": ' + b"[" * 100_000, 400, None),
    ("unknown model", {**CHAT, "model": "x"}, 404, "model"),
    ("no messages", {"model": "m"}, 400, "messages"),
    ("empty messages", {"messages": []}, 400, "messages"),
    ("wrong type", {**CHAT, "max_tokens": "many"}, 400, "max_tokens"),
    ("negative", {**CHAT, "max_tokens": -1}, 400, "max_tokens"),
    ("too many", {**CHAT, "max_tokens": 100_000}, 400, "max_tokens"),
    ("refused field", {**CHAT, "use_beam_search": True}, 400, "use_beam_search"),
    ("too long", {"messages": [{"role": "user", "content": "x" * 5_000}]}, 400, "messages"),
]


@pytest.mark.parametrize(
    ("body", "status", "param"), [row[1:] for row in BAD], ids=[r[0] for r in BAD]
)
async def test_bad_bodies(rig: Rig, body: bytes | dict[str, Any], status: int, param: str) -> None:
    await rig.ready()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = await rig.http.post(f"{rig.url}/v1/chat/completions", data=data, headers=JSON)
    assert response.status == status
    assert (await response.json())["error"]["param"] == param
    assert (await rig.http.get(f"{rig.url}/health")).status == 200


@pytest.mark.parametrize("prompt", ["", [], [[]], [""]])
async def test_an_empty_prompt(rig: Rig, prompt: Any) -> None:
    await rig.ready()
    response = await rig.post("/v1/completions", model="m", prompt=prompt)
    assert response.status == 400
    assert (await response.json())["error"]["param"] == "prompt"


async def test_too_long_a_prompt_has_its_code(rig: Rig) -> None:
    await rig.ready()
    response = await rig.post("/v1/completions", model="m", prompt="x" * 20_000)
    assert response.status == 400
    assert (await response.json())["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
async def test_routes(rig: Rig, method: str, path: str, status: int, code: str) -> None:
    response = await rig.http.request(method, rig.url + path)
    assert response.status == status
    assert (await response.json())["error"]["code"] == code
    assert ("Allow" in response.headers) == (status == 405)


async def test_an_oversize_body(make_rig: MakeRig) -> None:
    rig = await make_rig(body_bytes_max=1_000)
    await rig.ready()
    response = await rig.post("/v1/completions", model="m", prompt="x" * 2_000)
    assert response.status == 413
    assert (await response.json())["error"]["code"] == "body_too_large"


async def test_a_compressed_body(rig: Rig) -> None:
    response = await rig.http.post(
        f"{rig.url}/v1/completions", data=b"\x1f\x8b", headers=JSON | {"Content-Encoding": "gzip"}
    )
    assert response.status == 400


@pytest.mark.parametrize(
    ("sent", "echoed"), [("abc-1.2:3", True), ("bad id", False), ("x" * 97, False), ("é", False)]
)
async def test_request_id(rig: Rig, sent: str, echoed: bool) -> None:
    response = await rig.http.get(f"{rig.url}/live", headers={"x-request-id": sent})
    assert (response.headers["x-request-id"] == sent) is echoed
    assert response.headers["x-request-id"]


async def test_one_client_id_twice_is_two_requests(rig: Rig) -> None:
    await rig.ready()
    rig.router.answer = refuse_with("queue_full")
    for _ in range(2):
        await rig.http.post(
            f"{rig.url}/v1/chat/completions", json=CHAT, headers={"x-request-id": "same"}
        )
    first = await rig.router.next(Submit)
    second = await rig.router.next(Submit)
    assert first.request_id != second.request_id
    assert first.request_id.startswith("same-")


async def test_deadline_header(rig: Rig) -> None:
    await rig.ready()
    rig.router.answer = refuse_with("queue_full")
    url = f"{rig.url}/v1/chat/completions"
    await rig.http.post(url, json=CHAT, headers={"x-deadline-ms": "1500"})
    assert 0 < (await rig.router.next(Submit)).deadline_ms <= 1500
    for bad in ("-1", "soon", "0", "1e3", "nan"):
        response = await rig.http.post(url, json=CHAT, headers={"x-deadline-ms": bad})
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "x-deadline-ms"


async def test_models(rig: Rig) -> None:
    await rig.ready()
    listed = await (await rig.http.get(f"{rig.url}/v1/models")).json()
    (model,) = listed["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == ("m", "/model", 4096)
    assert await (await rig.http.get(f"{rig.url}/v1/models/m")).json() == model


async def test_over_max_streams(make_rig: MakeRig) -> None:
    rig = await make_rig(max_streams=1)
    await rig.ready()
    first = rig.ask("/v1/chat/completions", **CHAT)
    await rig.router.next(Submit)
    response = await rig.post("/v1/chat/completions", **CHAT)
    assert response.status == 429
    assert response.headers["Retry-After"] == "1"
    first.leave()


# ---------------------------------------------------------------- health, router lost, drain


async def test_health_follows_the_fleet(rig: Rig) -> None:
    await rig.ready()
    assert (await rig.http.get(f"{rig.url}/live")).status == 200
    rig.router.send(
        Fleet(ready=False, prefill_ready=1, decode_ready=0, max_model_len=0, reason="no decode")
    )
    body = await _health_until(rig, 503)
    assert body["reason"] == "no decode"


async def _health_until(rig: Rig, status: int) -> Any:
    async with asyncio.timeout(10):
        while True:
            response = await rig.http.get(f"{rig.url}/health")
            if response.status == status:
                return await response.json()


async def test_beats_go_to_the_router(rig: Rig) -> None:
    await rig.router.next(Beat)


async def test_without_a_router_work_is_held_and_then_refused(make_rig: MakeRig) -> None:
    rig = await make_rig(router_wait_ms=200)
    await rig.ready()
    rig.router.close()
    await _health_until(rig, 503)
    response = await rig.post("/v1/chat/completions", **CHAT)
    assert response.status == 503
    assert (await response.json())["error"]["code"] == "router_unreachable"
    assert response.headers["Retry-After"] == "1"


async def test_before_any_fleet_work_waits_and_then_hears_why(make_rig: MakeRig) -> None:
    rig = await make_rig(max_model_len=0, router_wait_ms=100)
    response = await rig.post("/v1/chat/completions", **CHAT)
    assert response.status == 503
    assert "Retry-After" in response.headers


async def test_what_was_not_placed_is_submitted_again_to_a_new_router(rig: Rig) -> None:
    await rig.ready()
    rig.router.answer = lambda _: None
    posted = rig.ask("/v1/chat/completions", **CHAT)
    first = await rig.router.next(Submit)
    router = rig.new_router()
    router.answer = lambda _: None
    again = await router.next(Submit)
    assert (again.request_id, again.attempt) == (first.request_id, first.attempt)
    posted.leave()
    assert (await router.next(Cancel)).request_id == first.request_id


async def test_a_drain_refuses_new_work_and_ends_the_rest_with_an_error(
    make_rig: MakeRig,
) -> None:
    rig = await make_rig(drain_ms=300)
    await rig.ready()
    posted = rig.ask("/v1/chat/completions", **CHAT)
    await rig.router.next(Submit)
    stopping = rig.tasks.start("stop", rig.gateway.stop(), ends=True)
    await rig.router.next(Leaving)
    refused = await rig.post("/v1/chat/completions", **CHAT)
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert (await refused.json())["error"]["code"] == "draining"
    assert (await rig.http.get(f"{rig.url}/health")).status == 503
    await stopping
    response = await posted.response()
    assert (await response.json())["error"]["code"] == "draining"
    await rig.router.next(Cancel)

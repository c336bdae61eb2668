"""Default-deny on a running gateway: every route, every wrong key, every way to ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.messages import PriorityClass, Submit
from common.security.api_keys import KeyRecord, edited, new_key
from tests.component.services.gateway.rig import MakeRig, Rig, refuse_with

KEY, KEY_ID, SHA256 = new_key()
WRONG = new_key()[0]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    with edited(path) as records:
        records.append(
            KeyRecord(
                id=KEY_ID, sha256=SHA256, tenant="shop", priority="batch", tokens_per_min=1_000
            )
        )
    return path


@pytest.fixture
async def locked(make_rig: MakeRig, keys_file: Path) -> Rig:
    return await make_rig(keys_file=str(keys_file))


async def raw(rig: Rig, request: str) -> tuple[int, str]:
    """Status and whole text of what answers these bytes; 0 when the connection is only closed."""
    host, port = rig.gateway.http_address
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request.replace("\n", "\r\n").encode("latin-1"))
    async with asyncio.timeout(10):
        text = (await reader.read()).decode("latin-1")
    writer.close()
    return int(text.split(" ", 2)[1]) if text else 0, text


BAD_KEYS = ["", "Authorization: Bearer none\n", f"Authorization: Bearer {WRONG}\n",
            f"x-api-key: {WRONG}\n", f"Authorization: Basic {KEY}\n",
            f"Authorization: Bearer {KEY}\nAuthorization: Bearer {WRONG}\n"]  # fmt: skip
TRICKS = [
    ("Host: 127.0.0.1\n", "{path}"),
    ("Host: localhost\nX-Forwarded-Host: localhost\nX-Original-URL: /health\n", "{path}"),
    ("Host: x\nX-Rewrite-URL: /live\nForwarded: for=127.0.0.1\nX-Forwarded-For: ::1\n", "{path}"),
    ("Host: health\n", "{path}"),
    ("Host: x\n", "{path}?/health"),
    ("Host: x\n", "{path}#/health"),
    ("Host: x\n", "/health/..{path}"),
    ("Host: x\n", "/live/%2e%2e{path}"),
    ("Host: x\n", "/{path}"),
]


def routes(rig: Rig) -> list[tuple[str, str]]:
    """All that the server serves, so that a new route is under test by itself."""
    found = {(method, path.replace("{model}", "m")) for method, path in rig.gateway.http_routes}
    assert ("POST", "/v1/chat/completions") in found
    return sorted(route for route in found if route[1] not in ("/health", "/live", "/ping"))


@pytest.mark.parametrize("headers", BAD_KEYS, ids=range(len(BAD_KEYS)))
async def test_no_route_answers_a_wrong_key_however_it_is_asked(locked: Rig, headers: str) -> None:
    for method, path in routes(locked):
        for host, form in TRICKS:
            target = form.format(path=path)
            status, text = await raw(
                locked, f"{method} {target} HTTP/1.1\n{host}{headers}Connection: close\n\n"
            )
            assert status == 401, (method, target, host, text)
            assert "WWW-Authenticate: Bearer" in text
            assert KEY[-64:] not in text


@pytest.mark.parametrize("path", ["/", "/nothing", "/v1/chat", "//health", "/health/", "/HEALTH"])
async def test_what_matches_no_route_is_denied_too(locked: Rig, path: str) -> None:
    status, _ = await raw(locked, f"GET {path} HTTP/1.1\nHost: x\nConnection: close\n\n")
    assert status == 401


async def test_a_wrong_method_of_an_open_route_is_denied(locked: Rig) -> None:
    for method in ("POST", "DELETE", "OPTIONS", "PATCH"):
        status, _ = await raw(locked, f"{method} /health HTTP/1.1\nHost: x\nConnection: close\n\n")
        assert status == 401


async def test_health_live_and_ping_need_no_key(locked: Rig) -> None:
    await locked.ready()
    for path in ("/live", "/health", "/ping"):
        assert (await locked.http.get(locked.url + path)).status == 200


async def test_a_key_says_tenant_limits_class_and_salt_to_the_router(locked: Rig) -> None:
    await locked.ready()
    locked.router.answer = refuse_with("rate_limited", 2_500)
    headers = {"Authorization": f"Bearer {KEY}"}
    response = await locked.http.post(
        f"{locked.url}/v1/chat/completions", json=CHAT, headers=headers
    )
    assert (response.status, response.headers["Retry-After"]) == (429, "3")
    submit = await locked.router.next(Submit)
    assert (submit.key_id, submit.tenant) == (KEY_ID, "shop")
    assert submit.priority is PriorityClass.BATCH
    assert submit.limits is not None
    assert submit.limits.tokens_per_min == 1_000
    assert locked.router.bodies[submit.request_id].cache_salt == "tenant:shop"


async def test_sighup_reads_the_keys_again(locked: Rig, keys_file: Path) -> None:
    headers = {"x-api-key": KEY}
    assert (await locked.http.get(f"{locked.url}/v1/models", headers=headers)).status == 200
    with edited(keys_file) as records:
        records.clear()
    locked.tasks.watchdog_and_reload.ready("up")
    locked.tasks.watchdog_and_reload.on_sighup()
    async with asyncio.timeout(10):
        while (await locked.http.get(f"{locked.url}/v1/models", headers=headers)).status != 401:
            pass


async def test_without_keys_requests_are_anonymous(rig: Rig) -> None:
    await rig.ready()
    rig.router.answer = refuse_with("queue_full")
    await rig.post("/v1/chat/completions", **CHAT)
    submit = await rig.router.next(Submit)
    assert (submit.key_id, submit.tenant, submit.limits) == ("", "", None)
    assert rig.router.bodies[submit.request_id].cache_salt is None

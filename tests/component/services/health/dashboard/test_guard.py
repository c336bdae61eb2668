"""The health daemon's HTTP: every route, every wrong key, every way to ask; open are two paths."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from common.config import Config, from_mapping
from common.errors import ConfigError
from common.process.lifecycle import Tasks
from common.security.api_keys import KeyRecord, edited, new_key
from services.health.daemon import Health, make

KEY, KEY_ID, SHA256 = new_key()
WRONG = new_key()[0]
Start = Callable[..., Awaitable[Health]]


def basic(password: str) -> str:
    return f"Authorization: Basic {base64.b64encode(f'me:{password}'.encode()).decode()}\n"


BAD_KEYS = ["", "Authorization: Bearer none\n", f"Authorization: Bearer {WRONG}\n",
            f"x-api-key: {WRONG}\n", basic(WRONG), basic(""), f"Authorization: Basic {KEY}\n",
            f"Authorization: Bearer {KEY}\nx-api-key: {KEY}\n"]  # fmt: skip
TRICKS = [
    ("127.0.0.1", "{path}"),
    ("localhost\nX-Forwarded-Host: localhost\nX-Original-URL: /health", "{path}"),
    ("x\nForwarded: for=127.0.0.1\nX-Forwarded-For: ::1", "{path}"),
    ("health", "{path}"),
    ("x", "{path}?/health"),
    ("x", "/health/..{path}"),
    ("x", "/live/%2e%2e{path}"),
    ("x", "/{path}"),
]


@asynccontextmanager
async def serving(run_dir: Path, **health: Any) -> AsyncIterator[Health]:
    config = from_mapping({"fleet": {"run_dir": str(run_dir)}, "health": {"port": 0} | health})
    tasks, daemon = Tasks(), make(config, "h0", structlog.get_logger("test"))
    await daemon.start(tasks)
    try:
        yield daemon
    finally:
        await daemon.stop()
        await tasks.cancel_all()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def begin(**health: Any) -> Health:
            return await stack.enter_async_context(serving(tmp_path, **health))

        yield begin


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    with edited(path) as records:
        records.append(KeyRecord(id=KEY_ID, sha256=SHA256, tenant="operators"))
    return path


async def ask(
    daemon: Health, path: str, headers: str = "", *, method: str = "GET", host: str = "127.0.0.1"
) -> tuple[int, str]:
    """Status and whole text."""
    reader, writer = await asyncio.open_connection(*daemon.http_address)
    request = f"{method} {path} HTTP/1.1\nHost: {host}\n{headers}Connection: close\n\n"
    writer.write(request.replace("\n", "\r\n").encode("latin-1"))
    async with asyncio.timeout(10):
        text = (await reader.read()).decode("latin-1")
    writer.close()
    return int(text.split(" ", 2)[1]), text


@pytest.mark.parametrize("headers", BAD_KEYS, ids=range(len(BAD_KEYS)))
async def test_no_route_answers_a_wrong_key_however_it_is_asked(
    start: Start, keys_file: Path, headers: str
) -> None:
    daemon = await start(keys_file=str(keys_file))
    routes = [route for route in daemon.http_routes if route[1] not in ("/health", "/live")]
    assert ("GET", "/metrics") in routes
    for method, path in [*routes, ("GET", "/"), ("GET", "/nothing"), ("POST", "/health")]:
        for host, form in TRICKS:
            target = form.format(path=path)
            status, text = await ask(daemon, target, headers, method=method, host=host)
            assert status == 401, (method, target, host, text)
            assert "WWW-Authenticate: Basic" in text or method == "HEAD"
            assert "baton_" not in text


@pytest.mark.parametrize(
    "headers",
    [f"Authorization: Bearer {KEY}\n", f"x-api-key: {KEY}\n", basic(KEY)],
    ids=["bearer", "x-api-key", "basic"],
)
async def test_a_good_key_reads_metrics(start: Start, keys_file: Path, headers: str) -> None:
    daemon = await start(keys_file=str(keys_file))
    assert (await ask(daemon, "/metrics", headers))[0] == 200


async def test_health_and_live_need_no_key(start: Start, keys_file: Path) -> None:
    daemon = await start(keys_file=str(keys_file))
    for path in ("/health", "/live"):
        assert (await ask(daemon, path, host="anything"))[0] == 200


async def test_on_loopback_without_keys_only_this_hosts_own_names_are_answered(
    start: Start,
) -> None:
    daemon = await start()
    for host in ("127.0.0.1", "localhost:9400", "[::1]:9400", "127.0.0.1:1"):
        assert (await ask(daemon, "/metrics", host=host))[0] == 200
    for host in ("evil.example", "127.0.0.1.evil.example:9400", "", "10.0.0.1", "localhost."):
        assert (await ask(daemon, "/metrics", host=host))[0] in (400, 403)
        assert (await ask(daemon, "/live", host=host or "x"))[0] == 200


async def test_a_revoked_key_is_refused_after_the_next_look(start: Start, keys_file: Path) -> None:
    daemon = await start(keys_file=str(keys_file), interval_ms=100)
    headers = f"x-api-key: {KEY}\n"
    assert (await ask(daemon, "/metrics", headers))[0] == 200
    with edited(keys_file) as records:
        records.clear()
    async with asyncio.timeout(20):
        while (await ask(daemon, "/metrics", headers))[0] != 401:
            pass


def test_a_health_daemon_that_others_reach_needs_keys_or_a_word() -> None:
    with pytest.raises(ConfigError, match=r"health.host: 0.0.0.0 can be reached"):
        from_mapping({"health": {"host": "0.0.0.0"}})
    for word in ({"keys_file": "k.json"}, {"allow_anonymous": True}):
        assert isinstance(from_mapping({"health": {"host": "0.0.0.0", **word}}), Config)


async def test_connections_are_limited_and_streams_are_not_cut(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.health.daemon.HEADER_SECONDS", 0.3)
    daemon = await start(connections_max=2)
    limits = daemon.connection_limits
    watching, watcher = await asyncio.open_connection(*daemon.http_address)
    watcher.write(b"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    async with asyncio.timeout(10):
        assert b" 200 " in await watching.readline()
        silent, idle = await asyncio.open_connection(*daemon.http_address)
        over, refused = await asyncio.open_connection(*daemon.http_address)
        assert b" 503 " in await over.readline()
        assert await silent.read() == b"", "no head in time"
        assert limits.timed_out == limits.refused == limits.connections == 1
        assert not watching.at_eof()
    for writer in (watcher, idle, refused):
        writer.close()

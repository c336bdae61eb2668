"""Hooks: what they get, how long they may take, how much of what they say is kept."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import time
from pathlib import Path

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.process import hook
from common.process.hook import SAID_BYTES_MAX, HookResult
from loadtest.ports import free_port

BODY = b'{"model": "m"}'
FOR_EVER = "import signal; signal.pause()"


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


async def test_a_command_reads_the_object_and_what_it_says_is_kept() -> None:
    result = await hook.call(python("import sys; print(sys.stdin.read(), '\\nof two')"), BODY, 20.0)
    assert result == HookResult(True, "", '{"model": "m"} of two')
    assert result.sentence == 'the hook was called: {"model": "m"} of two'


async def test_no_shell_reads_the_command() -> None:
    code = "import sys; print(sys.argv[1:])"
    result = await hook.call(f"{python(code)} $HOME ';' echo", BODY, 20.0)
    assert result.said == "['$HOME', ';', 'echo']"


async def test_a_failure_is_told_with_what_the_command_said() -> None:
    code = "import sys; print('no room', file=sys.stderr); sys.exit(3)"
    result = await hook.call(python(code), BODY, 20.0)
    assert result == HookResult(True, "exited with 3", "no room")


async def test_one_that_does_not_read_and_says_too_much_does_no_harm() -> None:
    code = "import sys; sys.stdin.close(); print('x' * 3_000_000)"
    result = await hook.call(python(code), b"y" * 1_000_000, 20.0)
    assert (result.called, result.fault, len(result.said)) == (True, "", SAID_BYTES_MAX)


async def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    code = (
        "import os, signal, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {FOR_EVER!r}])\n"
        "print('waiting', flush=True)\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "signal.pause()"
    )
    seconds, result = 0.5, HookResult(False)
    while not pids.read_text():  # it had not the time to begin
        seconds *= 2
        result = await hook.call(python(code), BODY, seconds)
    assert result == HookResult(True, f"was ended after {seconds:g} s", "waiting")
    for pid in map(int, pids.read_text().split()):
        deadline = time.monotonic() + 5.0
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "it lives"


async def test_what_it_said_between_the_end_of_its_time_and_its_own_is_kept() -> None:
    said, (reading, writing) = hook._Said(), os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as command:
        said.take_rest(pipe)
        command.write(b"last " + b"w" * SAID_BYTES_MAX)
        said.take_rest(pipe)
        said.take_rest(pipe)
    assert said.text == (b"last " + b"w" * SAID_BYTES_MAX)[:SAID_BYTES_MAX]


async def test_what_it_leaves_behind_on_purpose_is_not_waited_for() -> None:
    """It holds the command's output, and lives when the call is over."""
    code = (
        "import subprocess, sys\n"
        f"left = subprocess.Popen([sys.executable, '-c', {FOR_EVER!r}], start_new_session=True)\n"
        "print(left.pid)"
    )
    result = await hook.call(python(code), BODY, 20.0)
    left = psutil.Process(int(result.said))
    assert left.is_running()
    left.kill()
    assert result == HookResult(True, "", str(left.pid))


@pytest.mark.parametrize("command", ["/does/not/exist", "'"])
async def test_one_that_cannot_be_run_was_not_called(command: str) -> None:
    result = await hook.call(command, BODY, 5.0)
    assert not result.called
    assert result.fault.startswith("cannot be run: ")


async def test_a_webhook_gets_the_object_and_no_redirect_is_followed() -> None:
    got: list[object] = []

    async def take(request: web.Request) -> web.Response:
        got.append(json.loads(await request.read()))
        return web.Response(text="started d3")

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/take")

    app = web.Application()
    app.add_routes([web.post("/take", take), web.post("/elsewhere", elsewhere)])
    async with TestServer(app) as server:
        result = await hook.call(str(server.make_url("/take")), BODY, 10.0)
        moved = await hook.call(str(server.make_url("/elsewhere")), BODY, 10.0)
        missing = await hook.call(str(server.make_url("/missing")), BODY, 10.0)
    assert result == HookResult(True, "", "started d3")
    assert (moved.called, moved.fault) == (True, "answered 307")
    assert missing.fault == "answered 404"
    assert got == [{"model": "m"}]


async def test_a_webhook_that_nobody_serves_was_not_called_and_one_that_hangs_was() -> None:
    result = await hook.call(f"http://127.0.0.1:{free_port()}/hook", BODY, 10.0)
    assert not result.called
    assert result.fault.startswith("cannot be reached: ")

    async def hang(request: web.Request) -> web.Response:
        assert request.transport is not None
        while not request.transport.is_closing():
            await request.content.read()
            await asyncio.sleep(0.01)
        return web.Response()

    app = web.Application()
    app.add_routes([web.post("/hang", hang)])
    async with TestServer(app) as server:
        hung = await hook.call(str(server.make_url("/hang")), BODY, 0.5)
    assert hung == HookResult(True, "was ended after 0.5 s")

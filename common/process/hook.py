"""Hooks of operators: a command, or a webhook, that gets one JSON object.

A command runs without a shell, in a session of its own, reads the object on its standard input, and
is killed with its session when its time is over. A webhook gets the object as the body of a POST.
Of what either says the first `SAID_BYTES_MAX` bytes are kept, for the log.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from contextlib import suppress
from typing import IO, NamedTuple

import aiohttp

SAID_BYTES_MAX = 2_048
READ_BYTES = 65_536
LOOK_SECONDS = 0.5
"""While a command is silent, it is looked at this often whether it has ended: what it has started
may hold its output."""


class HookResult(NamedTuple):
    """What became of a call."""

    #: Whether the hook may have heard it: False = it was surely never called.
    called: bool
    #: What went wrong, for an operator; empty = nothing did.
    fault: str = ""
    #: The beginning of what it said, on one line.
    said: str = ""

    @property
    def sentence(self) -> str:
        """For the log."""
        said = f": {self.said}" if self.said else ""
        return f"the hook {self.fault or 'was called'}{said}"


def is_url(hook: str) -> bool:
    return hook.startswith(("http://", "https://"))


async def call(hook: str, body: bytes, seconds: float) -> HookResult:
    """Runs the command, or posts to the URL, for so long at most. Raises nothing."""
    return await (post if is_url(hook) else run)(hook, body, seconds)


async def run(command: str, body: bytes, seconds: float) -> HookResult:
    """Runs the command, for so long at most. Raises nothing."""
    try:
        return await _run(command, body, seconds)
    except (OSError, ValueError) as error:
        return HookResult(False, f"cannot be run: {error}")


class _Said(asyncio.Protocol):
    """Keeps the beginning of what comes through a pipe. What is too much is read and forgotten."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.text += data[: SAID_BYTES_MAX - len(self.text)]

    def connection_lost(self, _: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def take_rest(self, pipe: IO[bytes]) -> None:
        """What is in the pipe and was not heard yet: one read has all that a pipe holds."""
        if not self.over.done():
            with suppress(BlockingIOError):
                self.data_received(os.read(pipe.fileno(), READ_BYTES))


async def _run(command: str, body: bytes, seconds: float) -> HookResult:
    """Raises OSError or ValueError for a command that cannot be started."""
    reading, writing = os.pipe()
    pipe = os.fdopen(reading, "rb")
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            stdin=asyncio.subprocess.PIPE,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(writing)
    said, fault = _Said(), ""
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: said, pipe)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(_write(process, body), _listen(process, said))
            await process.wait()
    except TimeoutError:
        fault = f"was ended after {seconds:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        said.take_rest(pipe)
        transport.close()
    if not fault and process.returncode:
        fault = f"exited with {process.returncode}"
    return HookResult(True, fault, _line(said.text))


async def _write(process: asyncio.subprocess.Process, body: bytes) -> None:
    """A command need not read what it is told."""
    assert process.stdin is not None
    with suppress(ConnectionError):
        process.stdin.write(body)
        await process.stdin.drain()
    process.stdin.close()


async def _listen(process: asyncio.subprocess.Process, said: _Said) -> None:
    """Until its output is closed, or the command has ended."""
    while not said.over.done() and process.returncode is None:
        await asyncio.wait([said.over], timeout=LOOK_SECONDS)


async def post(url: str, body: bytes, seconds: float) -> HookResult:
    """Posts to the URL and follows no redirect. Raises nothing."""
    headers = {"Content-Type": "application/json"}
    try:
        async with (
            asyncio.timeout(seconds),
            aiohttp.ClientSession() as session,
            session.post(url, data=body, headers=headers, allow_redirects=False) as answer,
        ):
            said = _line(await answer.content.read(SAID_BYTES_MAX))
            fault = f"answered {answer.status}" if answer.status >= 300 else ""
            return HookResult(True, fault, said)
    except TimeoutError:
        return HookResult(True, f"was ended after {seconds:g} s")
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        return HookResult(False, f"cannot be reached: {error}")
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return HookResult(True, f"failed: {error}")


def _line(said: bytes | bytearray) -> str:
    return " ".join(said.decode(errors="replace").split())

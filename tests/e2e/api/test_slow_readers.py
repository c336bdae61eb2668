"""Fifty clients ask for logprobs of long prompts and read little of the answers: others do not
wait for them."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.e2e.api.conftest import Stack

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

READERS = 50
#: The gateway's own answers; it was 13 s. Those of the engine wait for the engine, too.
OTHERS_SECONDS_MAX = 3.0
#: Some 1 MiB each as JSON.
BODY = {"prompt": "the sea is wide " * 90, "echo": True, "logprobs": 20, "max_tokens": 1}
SHORT = {"prompt": "hello", "max_tokens": 1}
READ_BYTES, READ_SECONDS = 4096, 0.1
BUSY = 503


async def read_slowly(stack: Stack, done: asyncio.Event) -> int:
    """Reads on until `done` is set. Returns the status. A fleet that is full may ask it to come
    again."""
    while (status := await ask_and_read(stack, done)) == BUSY:  # noqa: ASYNC110
        await asyncio.sleep(READ_SECONDS)
    return status


async def ask_and_read(stack: Stack, done: asyncio.Event) -> int:
    address = urlsplit(stack.fleet.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    with connection:
        await loop.sock_connect(connection, (address.hostname, address.port))
        body = json.dumps(BODY).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {stack.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        await loop.sock_sendall(connection, head.encode() + body)
        first = await loop.sock_recv(connection, READ_BYTES)
        while not done.is_set():
            await asyncio.sleep(READ_SECONDS)  # it is what the test is about
            if not await loop.sock_recv(connection, READ_BYTES):
                break
    return int(first.split(b" ", 2)[1])


async def waits(stack: Stack, readers: asyncio.Future[list[int]]) -> tuple[float, float]:
    """The longest of requests one after the other, until all readers have begun to get their
    answers: for the list of models, which the gateway answers itself, and for a completion."""
    headers, longest, asked = {"authorization": f"Bearer {stack.key}"}, [0.0, 0.0], 0
    async with aiohttp.ClientSession(stack.fleet.url, headers=headers) as session:
        while asked < READERS:
            assert not readers.done()
            for at, request in enumerate(
                (session.get("/v1/models"), session.post("/v1/completions", json=SHORT))
            ):
                began = time.monotonic()
                async with request as answer:
                    assert answer.status == 200, await answer.text()
                longest[at] = max(longest[at], time.monotonic() - began)
            asked += 1
    return longest[0], longest[1]


async def test_slow_readers_of_large_answers_keep_nobody_waiting(stack: Stack) -> None:
    done = asyncio.Event()
    readers = asyncio.gather(*(read_slowly(stack, done) for _ in range(READERS)))
    models, completions = await waits(stack, readers)
    done.set()
    assert await readers == [200] * READERS
    print(f"longest wait of another client: models {models:.2f} s, completion {completions:.2f} s")
    assert models < OTHERS_SECONDS_MAX

"""Which gateway process of this host has a resumable stream, and how to reach it.

Theory of operation: only the process that began a resumable stream has its events, while any of the
processes on one port may get the client that comes back. So the id of such a stream ends with its
process's name, and every process serves its API on a Unix socket in the run directory too. A
process that is asked for another's stream sends the request on to that socket and passes the answer
back. The owner checks the key like that of any request. A request that came over a Unix socket is
never sent on, so that no id can make a loop.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from common.config import NAME_PATTERN
from common.errors import BatonError, Code

SENT_ON = ("Authorization", "x-api-key", "Last-Event-ID")
CONNECT_SECONDS = 2.0


class StreamOwners:
    """`name`: this process's, as in the fleet file."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self._run_dir = run_dir
        self._name = name

    @property
    def socket_path(self) -> Path:
        """Where this process listens for the others."""
        return self._socket_of(self._name)

    def stream_id(self, request_id: str) -> str:
        """The id of a resumable stream of this process."""
        return f"{request_id}.{self._name}"

    def other_owner(self, request: web.Request, stream_id: str) -> str:
        """The process to send the request on to; empty where this one must answer."""
        owner = stream_id.rpartition(".")[2]
        if owner == self._name or not re.match(NAME_PATTERN, owner) or _is_sent_on(request):
            return ""
        return owner if self._socket_of(owner).exists() else ""

    @asynccontextmanager
    async def answer_of(
        self, owner: str, request: web.Request
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Raises BatonError(NOT_FOUND) where that process is gone."""
        connector = aiohttp.UnixConnector(str(self._socket_of(owner)))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        headers = {name: request.headers[name] for name in SENT_ON if name in request.headers}
        url = f"http://{owner}{request.rel_url.raw_path}"
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                answer = await session.get(url, headers=headers)
            except (aiohttp.ClientError, TimeoutError) as error:
                sentence = f"gateway {owner}, which had this stream, is gone"
                raise BatonError(Code.NOT_FOUND, sentence) from error
            async with answer:
                yield answer

    def _socket_of(self, name: str) -> Path:
        return self._run_dir / f"gateway.{name}.http.sock"


def _is_sent_on(request: web.Request) -> bool:
    """Whether it came from another gateway of this host."""
    transport = request.transport
    connection = transport.get_extra_info("socket") if transport is not None else None
    return connection is not None and connection.family == socket.AF_UNIX

"""A worker's way to the router with a tap in it: a proxy between two unix sockets, run here.

The worker is told the tap's address; bytes pass, wait (`hold`) or come late. Nothing is dropped and
no connection closed, which is what a partition looks like to TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

CHUNK = 65_536


class Wire:
    """`held`: chunks that had to wait. A chunk has to be read before it can wait, so that a held
    wire keeps at most one of `CHUNK` bytes in each direction and then fills the sender's socket."""

    def __init__(self, near: Path, far: Path) -> None:
        self.near, self._far = near, far
        self.held = 0
        self._open = asyncio.Event()
        self._open.set()
        self._delay = 0.0
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"ipc://{self.near}"

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.near)

    def hold(self, delay: float | None) -> None:
        """For good, or each chunk for `delay` seconds."""
        if delay is None:
            self._open.clear()
        else:
            self._delay = delay

    def pass_on(self) -> None:
        self._delay = 0.0
        self._open.set()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(self._far)
        except OSError:
            writer.close()
            return
        ways = ((reader, far_writer), (far_reader, writer))
        tasks = [asyncio.get_running_loop().create_task(self._pump(*way)) for way in ways]
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        writer.close()
        far_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(CHUNK):
                if self._delay or not self._open.is_set():
                    self.held += 1
                    await asyncio.sleep(self._delay)
                    await self._open.wait()
                writer.write(chunk)
                await writer.drain()
        except OSError:
            return

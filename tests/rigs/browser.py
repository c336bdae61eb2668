"""A headless Chromium, driven over its DevTools protocol: open a page, ask it, take its picture."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

SECONDS = 30.0
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--remote-debugging-port=0", "about:blank",
)  # fmt: skip


def installed() -> str | None:
    """Its path; None where there is no Chromium."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.errors: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(SECONDS):
            while True:
                answer = await self._socket.receive_json()
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer
                    return answer["result"]
                self._hear(answer)

    def _hear(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(str(params["entry"]))

    async def open(self, url: str, width: int, height: int, *, dark: bool = False) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        told = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, expression: str) -> None:
        """Polls the page until this is true."""
        try:
            async with asyncio.timeout(SECONDS):
                while not await self.value(expression):  # noqa: ASYNC110 - the page has no event
                    await asyncio.sleep(0.1)
        except TimeoutError as error:
            raise AssertionError(f"never true on the page: {expression}") from error

    async def picture(self) -> bytes:
        """PNG."""
        told = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(told["data"])


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Page]:
    """`folder`: for its profile."""
    path = installed()
    assert path is not None
    process = await asyncio.create_subprocess_exec(
        path,
        *FLAGS,
        f"--user-data-dir={folder}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(folder / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(
                pages[0]["webSocketDebuggerUrl"], max_msg_size=64 << 20
            ) as socket:
                yield Page(socket)
    finally:
        process.kill()
        await process.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(SECONDS):
        while not (file.exists() and file.read_text().strip()):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])  # noqa: ASYNC240

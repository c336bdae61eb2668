"""Reads the metrics of every daemon of this host, over the sockets in the run directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from common.telemetry.exposition import SUFFIX
from services.health.metrics.merge import Daemon

SCRAPE_SECONDS = 1.0
DAEMONS_MAX = 256
PAGE_BYTES_MAX = 4 << 20


async def scrape(run_dir: Path) -> tuple[dict[Daemon, str], list[Daemon]]:
    """Pages by daemon, and those that have a socket and do not answer."""
    sockets = _sockets(run_dir)
    pages = await asyncio.gather(*(_page(path) for path in sockets))
    found: dict[Daemon, str] = {}
    silent: list[Daemon] = []
    for path, page in zip(sockets, pages, strict=True):
        role, _, name = path.name.removesuffix(SUFFIX).partition(".")
        if page is None:
            silent.append((role, name))
        else:
            found[role, name] = page
    return found, silent


def _sockets(run_dir: Path) -> list[Path]:
    return sorted(run_dir.glob(f"*{SUFFIX}"))[:DAEMONS_MAX]


async def _page(path: Path) -> str | None:
    timeout = aiohttp.ClientTimeout(total=SCRAPE_SECONDS)
    connector = aiohttp.UnixConnector(path=str(path))
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get("http://daemon/metrics") as answer,
        ):
            body = await answer.content.read(PAGE_BYTES_MAX)
            return body.decode() if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, UnicodeDecodeError):
        return None

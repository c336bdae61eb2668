"""Fetches images that a request names by URL, from hosts that the configuration allows.

An address is checked when it is connected to, so that no host name leads into a private network,
whatever it resolved to before. A redirect is followed only to a host that is allowed too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.api.bounds import check_size

REDIRECTS = frozenset({301, 302, 303, 307, 308})
REDIRECTS_MAX = 3
CHUNK_BYTES = 64 << 10
AT_ONCE = 4
SHOWN_CHARS = 64
HEADERS = {"Accept": "image/*", "User-Agent": "baton"}


class ImageFetcher:
    def __init__(self, config: GatewayConfig) -> None:
        self._hosts = frozenset(config.media_domains)
        self._bytes_max = config.limits.image_bytes_max
        self._count_max = config.limits.images_max
        self._ms_max = config.media_ms_max

    async def fetch(self, urls: list[str]) -> dict[str, bytes]:
        """Contents by URL. Raises BatonError(INVALID_REQUEST | UNSUPPORTED_PARAMETER) that names
        the host and what is wrong."""
        wanted = list(dict.fromkeys(urls))
        check_size("image_url", "images", len(wanted), self._count_max, "images_max")
        for url in wanted:
            self._host(url)
        try:
            async with asyncio.timeout(self._ms_max / 1000):
                return await self._all(wanted)
        except TimeoutError:
            what = f"the images did not come within {self._ms_max:.0f} ms (gateway.media_ms_max)"
            raise _bad(what) from None

    async def _all(self, urls: list[str]) -> dict[str, bytes]:
        gate = asyncio.Semaphore(AT_ONCE)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=PublicResolver(), use_dns_cache=False),
            headers=HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        ) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    work = {url: self._one(session, gate, url) for url in urls}
                    tasks = {url: group.create_task(one) for url, one in work.items()}
            except* BatonError as errors:
                raise errors.exceptions[0] from None
        return {url: task.result() for url, task in tasks.items()}

    async def _one(
        self, session: aiohttp.ClientSession, gate: asyncio.Semaphore, url: str
    ) -> bytes:
        async with gate:
            host = self._host(url)
            for _ in range(REDIRECTS_MAX + 1):
                try:
                    async with session.get(url, allow_redirects=False) as reply:
                        if reply.status in REDIRECTS:
                            url = urljoin(url, reply.headers.get("Location", ""))
                            host = self._host(url)
                            continue
                        if reply.status != 200:
                            raise _bad(f"{host} answered {reply.status}")
                        return await self._read(reply)
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    raise _bad(f"{host} cannot be read ({type(error).__name__})") from error
            raise _bad(f"{host} redirects more than {REDIRECTS_MAX} times")

    async def _read(self, reply: aiohttp.ClientResponse) -> bytes:
        content = bytearray()
        async for chunk in reply.content.iter_chunked(CHUNK_BYTES):
            content += chunk
            what = "bytes of an image"
            check_size("image_url", what, len(content), self._bytes_max, "image_bytes_max")
        return bytes(content)

    def _host(self, url: str) -> str:
        """The host of a URL that may be fetched."""
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise _bad(f"{url[:SHOWN_CHARS]!r} is no URL") from None
        if parts.scheme not in ("http", "https") or not host or parts.username is not None:
            raise _bad(f"{url[:SHOWN_CHARS]!r} is no URL of a host")
        if not {host, f"{host}:{port}"} & self._hosts:
            sentence = (
                f"image_url: images are not fetched from {host!r} (gateway.media_domains); "
                "send the image itself in a data: URL"
            )
            raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param="image_url")
        return host


class PublicResolver(AbstractResolver):
    """Names lead to public addresses only. An address that the URL itself has is not resolved."""

    def __init__(self, inner: AbstractResolver | None = None) -> None:
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if not all(ipaddress.ip_address(one["host"]).is_global for one in found):
            raise OSError(f"{host} is in a private network")
        return found

    async def close(self) -> None:
        await self._inner.close()


def _bad(what: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, f"image_url: {what}", param="image_url")

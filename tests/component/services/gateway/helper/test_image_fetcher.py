"""Images come from allowed hosts only, within bounds, however a host redirects."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.test_utils import TestServer

from common.config import GatewayConfig, RequestLimits
from common.errors import BatonError
from services.gateway.helper.image_fetcher import ImageFetcher, PublicResolver

pytestmark = pytest.mark.timeout(60)

BYTES = b"what is fetched is not looked at here"
LIMITS = RequestLimits(image_bytes_max=1000, images_max=3)


class Host:
    """An HTTP server on a loopback address, and what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        application = web.Application()
        application.router.add_get("/{name:.*}", self._answer)
        self.server = TestServer(application)

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def url(self, name: str) -> str:
        return f"http://{self.at}/{name}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.asked.append(name)
        self.headers.append(dict(request.headers))
        match name.split("/", 1):
            case ["to", target]:
                return web.Response(status=302, headers={"Location": f"/{target}"})
            case ["away", target]:
                return web.Response(status=302, headers={"Location": f"http://{target}/picture"})
            case ["large"]:
                return web.Response(body=bytes(1001))
            case ["endless"]:
                answer = web.StreamResponse()
                await answer.prepare(request)
                while True:
                    await answer.write(bytes(400))
            case ["silent"]:
                await asyncio.Event().wait()
            case ["missing"]:
                return web.Response(status=404)
        return web.Response(body=BYTES)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    made = Host()
    await made.server.start_server()
    yield made
    await made.server.close()


def fetcher(*domains: str, ms: float = 10_000.0) -> ImageFetcher:
    return ImageFetcher(GatewayConfig(media_domains=domains, media_ms_max=ms, limits=LIMITS))


async def refusal(fetching: ImageFetcher, *urls: str) -> str:
    with pytest.raises(BatonError) as refused:
        await fetching.fetch(list(urls))
    assert refused.value.http.status == 400
    assert refused.value.param == "image_url"
    return refused.value.message


async def test_a_named_address_is_fetched_from_and_each_image_once(host: Host) -> None:
    urls = [host.url("a"), host.url("to/b"), host.url("a")]
    assert await fetcher("127.0.0.1").fetch(urls) == dict.fromkeys(urls, BYTES)
    assert sorted(host.asked) == ["a", "b", "to/b"]
    assert not any({"Cookie", "Authorization", "Referer"} & sent.keys() for sent in host.headers)


async def test_a_port_can_be_named(host: Host) -> None:
    assert await fetcher(host.at).fetch([host.url("a")]) == {host.url("a"): BYTES}
    assert "gateway.media_domains" in await refusal(fetcher("127.0.0.1:1"), host.url("a"))
    assert host.asked == ["a"]


@pytest.mark.parametrize("domains", [(), ("images.example.com",), ("127.0.0.10",), ("127.0.0",)])
async def test_other_hosts_are_refused_by_name_and_never_asked(
    host: Host, domains: tuple[str, ...]
) -> None:
    sentence = await refusal(fetcher(*domains), host.url("a"))
    assert "'127.0.0.1' (gateway.media_domains)" in sentence
    assert "data: URL" in sentence
    assert host.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example.com@127.0.0.1/",
        "http://127.0.0.1\\@images.example.com/",
        "file:///etc/passwd",
        "http:///picture",
        "http://[::1/",
        "http://images.example.com:99999/",
        "ftp://images.example.com/",
    ],
)
async def test_a_url_that_is_not_plainly_of_an_allowed_host_is_refused(url: str) -> None:
    assert "image_url: " in await refusal(fetcher("images.example.com"), url)


async def test_a_name_that_leads_into_a_private_network_is_refused(host: Host) -> None:
    port = host.server.port
    assert "localhost cannot be read" in await refusal(
        fetcher("localhost"), f"http://localhost:{port}/a"
    )
    assert host.asked == []


class Names(AbstractResolver):
    """Every name has these addresses."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        about = {"hostname": host, "port": port, "family": family, "proto": 0, "flags": 0}
        return [ResolveResult(host=address, **about) for address in self._addresses]  # type: ignore[typeddict-item]

    async def close(self) -> None: ...


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1"])
async def test_no_address_of_a_name_may_be_private(address: str) -> None:
    """8.8.8.8 is somebody's."""
    found = await PublicResolver(Names("8.8.8.8")).resolve("images.example.com")
    assert [one["host"] for one in found] == ["8.8.8.8"]
    for addresses in ((address,), ("8.8.8.8", address), (address, "8.8.8.8")):
        with pytest.raises(OSError, match="private network"):
            await PublicResolver(Names(*addresses)).resolve("images.example.com")


async def test_a_url_with_credentials_is_refused(host: Host) -> None:
    sentence = await refusal(fetcher("127.0.0.1"), f"http://user:word@{host.at}/a")
    assert "is no URL of a host" in sentence
    assert host.asked == []


async def test_a_redirect_leads_nowhere_else(host: Host) -> None:
    private = await refusal(fetcher("127.0.0.1"), host.url("away/127.0.0.2"))
    assert "'127.0.0.2' (gateway.media_domains)" in private
    endless = await refusal(fetcher("127.0.0.1"), host.url("to/to/to/to/a"))
    assert "redirects more than 3 times" in endless
    assert "a" not in host.asked


async def test_bounds_of_size_number_and_time(host: Host) -> None:
    fetching = fetcher("127.0.0.1")
    assert "gateway.limits.image_bytes_max" in await refusal(fetching, host.url("large"))
    assert "gateway.limits.image_bytes_max" in await refusal(fetching, host.url("endless"))
    assert "answered 404" in await refusal(fetching, host.url("missing"))
    many = [host.url(str(nth)) for nth in range(4)]
    assert "4 images, at most 3 (gateway.limits.images_max)" in await refusal(fetching, *many)
    hasty = fetcher("127.0.0.1", ms=200.0)
    assert "gateway.media_ms_max" in await refusal(hasty, host.url("a"), host.url("silent"))


async def test_a_host_that_does_not_answer_is_named() -> None:
    sentence = await refusal(fetcher("127.0.0.1"), "http://127.0.0.1:9/a")
    assert "127.0.0.1 cannot be read (ClientConnectorError)" in sentence

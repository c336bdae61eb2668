"""Checks of a request's form, before its key is looked at, and reading its body after that.

The parser (llhttp in strict mode) itself refuses both kinds of length together, two lengths, a
length that is no number, folded fields, NUL, bare CR or LF, two Host fields or none, and broken
chunks. The checks here add the limits of size, and what the parser accepts although a proxy may
read it differently.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11

from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.api.bounds import MemberCount

HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")


def check_form(request: web.BaseRequest, header_bytes_max: int) -> None:
    """Raises BatonError(INVALID_REQUEST | HEADERS_TOO_LARGE)."""
    version, headers = request.version, request.headers
    if version not in (HttpVersion10, HttpVersion11):
        raise _bad("only HTTP/1.0 and HTTP/1.1 are spoken here")
    size = sum(len(name) + len(value) for name, value in request.raw_headers)
    if size + len(request.raw_path) > header_bytes_max:
        sentence = f"the request line and headers are larger than {header_bytes_max} bytes"
        raise BatonError(Code.HEADERS_TOO_LARGE, sentence)
    if not request.raw_path.startswith("/"):
        raise _bad("the request target must be a path")
    host = headers.get("Host")
    if host is None and version == HttpVersion11:
        raise _bad("the Host header is missing")
    if host is not None and HOST.fullmatch(host) is None:
        raise _bad("the Host header is not a host and port")
    encoding = headers.get("Transfer-Encoding")
    if encoding is not None and (encoding.lower() != "chunked" or version == HttpVersion10):
        raise _bad("the only transfer encoding is chunked, in HTTP/1.1")
    if "Content-Encoding" in headers:
        sentence = "a compressed request body is not accepted"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="content-encoding")


def check_body_type(content_type: str, allowed: Sequence[str]) -> None:
    """`content_type`: the header, empty where there is none. Raises
    BatonError(UNSUPPORTED_MEDIA_TYPE)."""
    if content_type.partition(";")[0].strip().lower() not in allowed:
        sentence = f"the body's content-type must be {' or '.join(allowed)}"
        raise BatonError(Code.UNSUPPORTED_MEDIA_TYPE, sentence, param="content-type")


async def read_body(request: web.Request, config: GatewayConfig) -> bytes:
    """In pieces, so that the loop does little at once for a long body, and one that has too much is
    refused before it is whole. Raises BatonError(INVALID_REQUEST | REQUEST_TIMEOUT) and
    HTTPRequestEntityTooLarge."""
    if request.content.is_eof():
        return await _joined(request, config)
    try:
        async with asyncio.timeout(config.body_ms_max / 1000):
            return await _joined(request, config)
    except TimeoutError:
        sentence = f"the request body did not come within {config.body_ms_max:.0f} ms"
        raise BatonError(Code.REQUEST_TIMEOUT, sentence) from None


async def _joined(request: web.Request, config: GatewayConfig) -> bytes:
    members, size, most = MemberCount(config.limits), 0, config.body_bytes_max
    pieces: list[bytes] = []
    while piece := await request.content.readany():
        size += len(piece)
        if size > most:
            raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=size)
        members.add(piece)
        pieces.append(piece)
    return b"".join(pieces)


def _bad(sentence: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, sentence)

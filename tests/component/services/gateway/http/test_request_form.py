"""Malformed, ambiguous and oversized requests on a real socket: each is answered 4xx, none runs."""

from __future__ import annotations

import gzip

import pytest

from common.messages import Submit
from tests.component.services.gateway.raw import RawClient
from tests.component.services.gateway.rig import MakeRig, Rig

BODY = b'{"model":"m","prompt":"p","max_tokens":1}'
POST = b"POST /v1/completions HTTP/1.1\r\n"
HOST = b"Host: x\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
BOMB = gzip.compress(b" " * 50_000_000)
MANY = b"".join(b"X%d: %b\r\n" % (n, b"a" * 2_000) for n in range(100))

CASES: list[tuple[str, bytes]] = [
    ("both lengths", POST + HOST + LENGTH + CHUNKED + b"\r\n" + CHUNKS),
    ("both lengths, other order", POST + HOST + CHUNKED + LENGTH + b"\r\n" + CHUNKS),
    ("two equal lengths", POST + HOST + LENGTH * 2 + b"\r\n" + BODY),
    ("two lengths", POST + HOST + LENGTH + b"Content-Length: 1\r\n\r\n" + BODY),
    ("a list of lengths", POST + HOST + b"Content-Length: 41, 41\r\n\r\n" + BODY),
    ("a signed length", POST + HOST + b"Content-Length: +41\r\n\r\n" + BODY),
    ("a space before the colon", POST + HOST + b"Content-Length : 41\r\n\r\n" + BODY),
    ("two encodings", POST + HOST + CHUNKED * 2 + b"\r\n" + CHUNKS),
    ("gzip, chunked", POST + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS),
    ("xchunked", POST + HOST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKS),
    ("a hidden encoding", POST + HOST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKS),
    ("chunked in 1.0", POST.replace(b"1.1", b"1.0") + HOST + CHUNKED + b"\r\n" + CHUNKS),
    ("a length in the trailer", POST + HOST + CHUNKED + b"\r\n" + CHUNKS[:-2] + LENGTH + b"\r\n"),
    ("a chunk size in LF", POST + HOST + CHUNKED + b"\r\n29\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a chunk size 0x", POST + HOST + CHUNKED + b"\r\n0x29\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a chunk size too big", POST + HOST + CHUNKED + b"\r\n" + b"f" * 17 + b"\r\n"),
    ("a chunk longer than it says", POST + HOST + CHUNKED + b"\r\n2\r\n{}XX0\r\n\r\n"),
    ("a folded header", POST + HOST + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY),
    ("bare LF", b"POST /v1/completions HTTP/1.1\nHost: x\n" + LENGTH + b"\r\n" + BODY),
    ("bare LF in a header", POST + b"Host: x\nX: y\r\n" + LENGTH + b"\r\n" + BODY),
    ("bare CR", POST + HOST + b"X: a\rb\r\n" + LENGTH + b"\r\n" + BODY),
    ("NUL", POST + HOST + b"X: a\x00b\r\n" + LENGTH + b"\r\n" + BODY),
    ("no Host", POST + LENGTH + b"\r\n" + BODY),
    ("two Hosts", POST + HOST * 2 + LENGTH + b"\r\n" + BODY),
    ("an empty Host", POST + b"Host:\r\n" + LENGTH + b"\r\n" + BODY),
    ("a Host with a path", POST + b"Host: x/health\r\n" + LENGTH + b"\r\n" + BODY),
    ("a Host with a user", POST + b"Host: a@b\r\n" + LENGTH + b"\r\n" + BODY),
    ("a Host with a space", POST + b"Host: a b\r\n" + LENGTH + b"\r\n" + BODY),
    ("an absolute target", POST.replace(b"/v1", b"http://x/v1") + HOST + LENGTH + b"\r\n" + BODY),
    ("a target of another", b"GET http://evil/health HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("an asterisk", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("CONNECT", b"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n"),
    ("HTTP/2 by force", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("HTTP/1.9", POST.replace(b"1.1", b"1.9") + HOST + LENGTH + b"\r\n" + BODY),
    ("a gzip bomb", POST + HOST + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
        % (len(BOMB), BOMB)),
    ("a header of 200 KB", POST + HOST + b"X: " + b"a" * 200_000 + b"\r\n" + LENGTH + b"\r\n"),
    ("200 KB of headers", POST + HOST + MANY + LENGTH + b"\r\n" + BODY),
    ("500 headers", POST + HOST + b"".join(b"X%d: a\r\n" % n for n in range(500)) + b"\r\n"),
    ("a target of 200 KB", b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
]  # fmt: skip


@pytest.mark.parametrize("sent", [case[1] for case in CASES], ids=[case[0] for case in CASES])
async def test_a_bad_form_is_answered_4xx_and_runs_nothing(rig: Rig, sent: bytes) -> None:
    await rig.ready()
    client = await RawClient.open(rig)
    client.send(sent)
    assert 400 <= await client.status() < 500
    client.close()
    assert not [m for m in rig.router.drained() if isinstance(m, Submit)]
    await rig.turn()


async def test_http_0_9_gets_no_page(rig: Rig) -> None:
    client = await RawClient.open(rig)
    client.send(b"GET /live\r\n\r\n")
    assert b'"live"' not in await client.reader.read()


@pytest.mark.parametrize("host", [b"x", b"api.example:8000", b"127.0.0.1:1", b"[::1]:8000", b"a_b"])
async def test_an_ordinary_host_is_served(rig: Rig, host: bytes) -> None:
    client = await RawClient.open(rig)
    client.send(b"GET /live HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    assert await client.status() == 200
    client.close()


async def test_an_offer_to_upgrade_is_ignored_and_the_connection_ends(rig: Rig) -> None:
    client = await RawClient.open(rig)
    client.send(
        b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n"
    )
    assert await client.status() == 200
    assert await client.closed()


async def test_a_smuggled_second_request_is_not_answered(rig: Rig) -> None:
    client = await RawClient.open(rig)
    inner = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
    client.send(POST + HOST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + inner)
    answer = await client.reader.read()
    assert answer.count(b"HTTP/1.") == 1
    assert b'"live"' not in answer


async def test_the_server_does_not_say_what_it_is_made_of(rig: Rig) -> None:
    for path in ("/live", "/nothing"):
        response = await rig.http.get(rig.url + path)
        assert response.headers["Server"] == "baton"


async def test_a_body_with_too_much_in_it_is_refused_before_it_is_whole(rig: Rig) -> None:
    client = await RawClient.open(rig)
    client.send(POST + HOST + b"Content-Type: application/json\r\nContent-Length: 8000000\r\n\r\n")
    client.send(b"[" * 600_000)
    assert await client.status() == 400
    client.close()


async def test_a_body_that_is_too_long_is_refused_before_it_is_whole(make_rig: MakeRig) -> None:
    rig = await make_rig(body_bytes_max=10)
    client = await RawClient.open(rig)
    client.send(POST + HOST + b"Content-Type: application/json\r\nContent-Length: 90\r\n\r\n")
    client.send(b" " * 11)
    assert await client.status() == 413
    client.close()

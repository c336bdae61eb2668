"""TLS by certificate files, read again when they change. The pairs are made by openssl."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from aiohttp.web_protocol import RequestHandler
from structlog.testing import capture_logs

from common.config import GatewayConfig
from common.errors import ConfigError
from services.gateway.http.tls import Certificate, open_certificate
from tests.component.services.gateway.raw import RawClient, eventually
from tests.component.services.gateway.rig import MakeRig
from tests.rigs.other_user import OTHER_USER, needs_root

LOG = structlog.get_logger("test")


def make_pair(folder: Path, name: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def client_context(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def test_https_and_a_new_certificate_without_a_restart(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    old, old_key = make_pair(tmp_path, "old")
    served, served_key = tmp_path / "served.pem", tmp_path / "served.key"
    served.write_bytes(old.read_bytes())
    served_key.touch(mode=0o600)
    served_key.write_bytes(old_key.read_bytes())
    rig = await make_rig(tls_certificate_file=str(served), tls_key_file=str(served_key))
    host, port = rig.gateway.http_address

    async def speaks(trusted: Path) -> bool:
        try:
            _, writer = await asyncio.open_connection(
                host, port, ssl=client_context(trusted), server_hostname="localhost"
            )
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        return True

    assert await speaks(old)
    new, new_key = make_pair(tmp_path, "new")
    served.write_bytes(new.read_bytes())
    served_key.write_bytes(new_key.read_bytes())
    async with asyncio.timeout(10):
        while not await speaks(new):
            pass
    assert not await speaks(old)


async def test_plain_http_on_a_tls_port_gets_nothing(make_rig: MakeRig, tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "x")
    rig = await make_rig(tls_certificate_file=str(certificate), tls_key_file=str(key))
    reader, writer = await asyncio.open_connection(*rig.gateway.http_address)
    writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" not in await reader.read()
    writer.close()


def test_a_pair_that_does_not_match_is_refused_at_start_and_ignored_later(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "one")
    other, other_key = make_pair(tmp_path, "other")
    with pytest.raises(ConfigError, match="cannot be used"):
        Certificate(str(certificate), str(other_key), LOG)
    loaded = Certificate(str(certificate), str(key), LOG)
    certificate.write_bytes(other.read_bytes())
    with capture_logs() as logs:
        loaded.refresh()
        loaded.refresh()
        key.write_bytes(other_key.read_bytes())
        loaded.refresh()
    assert [entry["event"] for entry in logs] == [
        "certificate.rejected",
        "certificate.reloaded",
    ]


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "open")
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="open to every user of this host; run chmod 0640"):
        Certificate(str(certificate), str(key), LOG)


@needs_root
def test_a_pair_that_another_user_could_change_is_refused(tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "theirs")
    tmp_path.chmod(0o1777)
    os.chown(key, OTHER_USER, -1)
    with pytest.raises(ConfigError, match=f"it belongs to user {OTHER_USER}"):
        Certificate(str(certificate), str(key), LOG)
    key.unlink()
    key.symlink_to(make_pair(tmp_path, "other")[1])
    with pytest.raises(ConfigError, match="is a symbolic link in a folder that others can change"):
        Certificate(str(certificate), str(key), LOG)


def test_one_file_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="tls_key_file"):
        open_certificate(GatewayConfig(tls_certificate_file="x"), LOG)
    with pytest.raises(ConfigError, match="tls_certificate_file"):
        open_certificate(GatewayConfig(tls_key_file="x"), LOG)
    assert open_certificate(GatewayConfig(), LOG) is None


async def test_a_handshake_counts_as_a_connection_until_it_fails(
    make_rig: MakeRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP protocol hears of neither its beginning nor its end."""
    lost: list[object] = []
    monkeypatch.setattr(RequestHandler, "connection_lost", lambda *about: lost.append(about))
    certificate, key = make_pair(tmp_path, "x")
    files = {"tls_certificate_file": str(certificate), "tls_key_file": str(key)}
    rig = await make_rig(**files, connections_max=2)
    limits = rig.gateway.connection_limits
    silent = await RawClient.open(rig)
    wrong = await RawClient.open(rig)
    await eventually(lambda: limits.connections == 2)
    reader, writer = await asyncio.open_connection(
        *rig.gateway.http_address, ssl=client_context(certificate), server_hostname="localhost"
    )
    refused = RawClient(reader, writer)
    assert await refused.status() == 503
    assert limits.refused == 1
    refused.close()
    wrong.send(b"this is no handshake, and long enough for the server to see that")
    assert await wrong.closed()
    await eventually(lambda: limits.connections == 1)
    silent.close()
    await eventually(lambda: limits.connections == limits.leaving == 0)
    assert not lost


async def test_a_handshake_that_does_not_come_is_ended(make_rig: MakeRig, tmp_path: Path) -> None:
    certificate, key = make_pair(tmp_path, "x")
    files = {"tls_certificate_file": str(certificate), "tls_key_file": str(key)}
    rig = await make_rig(**files, header_ms_max=50)
    silent = await RawClient.open(rig)
    assert await silent.closed()
    limits = rig.gateway.connection_limits
    await eventually(lambda: limits.connections == 0)
    assert limits.timed_out == 1


async def test_what_comes_with_the_end_of_the_handshake_is_answered(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    """In one piece with it, as a client may send it that waits for nothing."""
    certificate, key = make_pair(tmp_path, "x")
    rig = await make_rig(tls_certificate_file=str(certificate), tls_key_file=str(key))
    client = await RawClient.open(rig)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(certificate).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    client.send(outgoing.read())
    while True:
        incoming.write(await client.reader.read(65_536))
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            continue
    tls.write(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    client.send(outgoing.read())
    answer = b""
    while not answer:
        incoming.write(await client.reader.read(65_536))
        with suppress(ssl.SSLWantReadError):
            answer = tls.read()
    assert answer.startswith(b"HTTP/1.1 200")
    client.close()
    await eventually(lambda: rig.gateway.connection_limits.connections == 0)

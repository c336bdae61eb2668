"""TLS by certificate files, read again when they change. The pairs are made by openssl."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from common.config import GatewayConfig
from common.errors import ConfigError
from services.gateway.http.tls import Certificate, open_certificate
from tests.component.services.gateway.rig import MakeRig

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


def test_one_file_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="tls_key_file"):
        open_certificate(GatewayConfig(tls_certificate_file="x"), LOG)
    with pytest.raises(ConfigError, match="tls_certificate_file"):
        open_certificate(GatewayConfig(tls_key_file="x"), LOG)
    assert open_certificate(GatewayConfig(), LOG) is None

"""The server's certificate, read again when its files change; open connections keep theirs.

A pair that cannot be used, because it is half written or does not match, is logged and changes
nothing. The next change of either file is another chance.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import BinaryIO

from common.config import GatewayConfig
from common.errors import ConfigError
from common.process.owned_files import open_trusted
from common.process.watched_file import WatchedFile
from common.telemetry.log import Logger


class Certificate:
    """Raises ConfigError when the first pair cannot be used."""

    def __init__(self, certificate: str, key: str, log: Logger) -> None:
        #: The server's; a new pair is loaded into it.
        self.context = _context()
        self._key = Path(key)
        self._file = WatchedFile(
            Path(certificate), self._load, "certificate", log, also=(self._key,)
        )

    def refresh(self) -> None:
        """Loads the pair if one of its files has changed."""
        self._file.refresh()

    def _load(self, certificate: Path) -> None:
        """Tries the pair in a context of its own first: a failure must not touch the server's. What
        was judged is what is read."""
        try:
            with open_trusted(certificate) as chain, open_trusted(self._key, secret=True) as key:
                for context in (_context(), self.context):
                    context.load_cert_chain(_path(chain), _path(key), password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            sentence = f"{certificate} with {self._key} cannot be used: {error}"
            raise ConfigError("gateway.tls_certificate_file", sentence) from error


def open_certificate(config: GatewayConfig, log: Logger) -> Certificate | None:
    """None for plain HTTP. Raises ConfigError when only one of the two files is named."""
    certificate, key = config.tls_certificate_file, config.tls_key_file
    if not certificate and not key:
        return None
    if not certificate or not key:
        missing = "tls_key_file" if certificate else "tls_certificate_file"
        raise ConfigError(f"gateway.{missing}", "TLS needs both files, a certificate and its key")
    return Certificate(certificate, key, log)


def _path(file: BinaryIO) -> str:
    """Of a file that is open."""
    return f"/proc/self/fd/{file.fileno()}"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    """OpenSSL would ask on the terminal otherwise."""
    raise ValueError("the key is encrypted; decrypt it")

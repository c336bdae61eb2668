"""The server's certificate, read again when its files change; open connections keep theirs.

A pair that cannot be used (half written, no match) is said and changes nothing: the check that
follows the next change tries again.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from common.config import GatewayConfig
from common.errors import ConfigError
from common.log import Logger

Signature = tuple[int, ...]


class Certificate:
    """Raises ConfigError when the first pair cannot be used."""

    def __init__(self, certificate: str, key: str, log: Logger) -> None:
        self._certificate, self._key = Path(certificate), Path(key)
        self._log = log
        self.context = self._loaded(_context())
        self._seen = self._signature()

    def refresh(self) -> None:
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._loaded(_context())
            self._loaded(self.context)
        except ConfigError as error:
            sentence = f"{error.message}; the certificate read before stays in use"
            self._log.error("certificate.rejected", sentence=sentence)
            return
        self._log.info("certificate.reloaded", file=str(self._certificate))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            sentence = f"{self._certificate} with {self._key} cannot be used: {error}"
            raise ConfigError("gateway.tls_certificate_file", sentence) from error
        return context

    def _signature(self) -> Signature:
        found: list[int] = []
        for path in (self._certificate, self._key):
            try:
                stat = path.stat()
            except OSError:
                continue
            found += [stat.st_ino, stat.st_mtime_ns, stat.st_size]
        return tuple(found)


def open_certificate(config: GatewayConfig, log: Logger) -> Certificate | None:
    """None: plain HTTP. Raises ConfigError when only one of the two files is named."""
    certificate, key = config.tls_certificate_file, config.tls_key_file
    if not certificate and not key:
        return None
    if not certificate or not key:
        missing = "tls_key_file" if certificate else "tls_certificate_file"
        raise ConfigError(f"gateway.{missing}", "TLS needs both files, a certificate and its key")
    return Certificate(certificate, key, log)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    """Else OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted; decrypt it")

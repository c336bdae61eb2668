"""The file of the fleet's secrets, by which workers authenticate each other."""

from __future__ import annotations

from pathlib import Path

from common.process.watched_file import WatchedFile
from common.security.files import read_kv_secrets
from common.telemetry.log import Logger


def watched_secrets(path: str, log: Logger) -> WatchedFile[tuple[bytes, ...]] | None:
    """None if workers do not authenticate each other. Raises ConfigError."""
    return WatchedFile(Path(path), _read_secrets, "kv_secrets", log) if path else None


def _read_secrets(path: Path) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(secret) for secret in read_kv_secrets(path).secrets)

"""Who may read this host's metrics and dashboard: default-deny, as at the gateway.

With a key file every path but `/health` and `/live` asks for one of its keys, as a bearer token,
an `x-api-key` header, or the password of HTTP Basic, which a browser asks its user for. Without one
the configuration allows loopback only; then the Host header must name this host, or a page that a
browser of this host shows could read all by giving its own name the address 127.0.0.1.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from common.config import HealthConfig
from common.config.exposure import is_loopback
from common.errors import BatonError
from common.net.connection_limits import answering
from common.process.watched_file import WatchedFile
from common.security.api_key_check import KeyCheck
from common.security.api_keys import read_keys
from common.telemetry.log import Logger

OPEN = frozenset({"/health", "/live"})


class HealthGuard:
    """Raises ConfigError when the key file cannot be used at the start."""

    def __init__(self, config: HealthConfig, log: Logger) -> None:
        self._config = config
        path = config.keys_file
        self._keys = WatchedFile(Path(path), _check, "keys", log) if path else None

    def refresh(self) -> None:
        """Follows the key file."""
        if self._keys is not None:
            self._keys.refresh()

    def middleware(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            with answering(request.transport):
                resource = request.match_info.route.resource
                is_open = resource is not None and resource.canonical in OPEN
                refusal = None if is_open else self._refusal(request)
                return await handler(request) if refusal is None else refusal

        return guard

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._keys is None:
            if self._config.allow_anonymous or self._names_us(request.headers.get("Host", "")):
                return None
            sentence = "ask by the address of this host, or set [health] keys_file"
            return _answer(403, "forbidden_host", sentence)
        headers = request.headers
        try:
            self._keys.value.identify(
                headers.getall("Authorization", ()), headers.getall("x-api-key", ())
            )
        except BatonError as error:
            answer = _answer(401, error.code.value, error.message)
            answer.headers["WWW-Authenticate"] = 'Basic realm="baton", charset="UTF-8"'
            return answer
        return None

    def _names_us(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name == self._config.host or is_loopback(name.strip("[]"))


def _answer(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)


def _check(path: Path) -> KeyCheck:
    return KeyCheck(read_keys(path), basic=True)

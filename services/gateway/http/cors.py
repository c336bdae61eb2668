"""Which web pages may use the API: the `Origin` of a request against `[gateway] cors_origins`.

Theory of operation: a browser lets any page send requests to any address, a gateway on the user's
own machine included, and says in `Origin` which page it was. So a request with an origin that is
not listed is refused before anything else looks at it. To read an answer, or to send JSON, a page
further needs the permission that these headers give (Fetch standard, "CORS protocol"). Programs
that are no browser send no origin and are not concerned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.errors import BatonError, Code

ANY = "*"
PREFLIGHT_SECONDS = "600"
#: A client's JavaScript may read these of an answer.
EXPOSED = "retry-after, server-timing, traceparent, x-ignored-fields, x-request-id, x-stream-id"
METHODS = "GET, POST, DELETE"


class Origins:
    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def headers(self, request_headers: Mapping[str, str]) -> dict[str, str]:
        """Of the answer; none for a request without an origin. Raises
        BatonError(ORIGIN_REFUSED)."""
        origin = request_headers.get("Origin")
        if origin is None:
            return {}
        if ANY not in self._allowed and origin.lower() not in self._allowed:
            sentence = "pages of this origin may not use this server (gateway.cors_origins)"
            raise BatonError(Code.ORIGIN_REFUSED, sentence, param="origin")
        shown = ANY if ANY in self._allowed else origin
        return {
            "Access-Control-Allow-Origin": shown,
            "Access-Control-Expose-Headers": EXPOSED,
            "Vary": "Origin",
        }


def is_preflight(method: str, request_headers: Mapping[str, str]) -> bool:
    """Whether a browser asks if a page may send the request that it wants to."""
    return method == "OPTIONS" and "Access-Control-Request-Method" in request_headers


def preflight_headers(request_headers: Mapping[str, str]) -> dict[str, str]:
    """The permission for any route; a key is asked for when the request itself comes."""
    headers = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": request_headers.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": PREFLIGHT_SECONDS,
    }
    if "Access-Control-Request-Private-Network" in request_headers:
        headers["Access-Control-Allow-Private-Network"] = "true"
    return headers

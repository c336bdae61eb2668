"""`/v1/responses/{id}` and what is below it, in OpenAI's shapes.

A response of one API key does not exist for the others. Where none are stored each route answers
501 with the setting that it needs.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.api.routes import Route
from services.gateway.http.full_api_routes import send_events
from services.gateway.http.guard import CALLER, JSON_TYPE
from services.gateway.jobs.ledger import Ledger
from services.gateway.responses import conversation, records
from services.gateway.responses.followers import Followers

ONE = "/v1/responses/{response_id}"
ROUTES = (
    ("GET", ONE),
    ("DELETE", ONE),
    ("GET", ONE + "/input_items"),
    ("POST", ONE + "/cancel"),
)
OFF = "this gateway stores no responses: set [gateway.jobs] path, and responses_max above 0"
ITEMS_OF_A_PAGE, ITEMS_MAX = 20, 100
LIMIT = re.compile(r"[1-9]\d?|100")
EVENT_NUMBER = re.compile(r"\d{1,15}")


def refusing_routes() -> Iterator[tuple[str, str, Handler]]:
    """Of a gateway that stores none."""

    async def handler(_: web.Request) -> web.StreamResponse:
        raise BatonError(Code.NOT_SERVED, OFF)

    for method, path in ROUTES:
        yield method, path, handler


class ResponseRoutes:
    """`on_end` is called with the id of what is not to be done any more."""

    def __init__(
        self,
        ledger: Ledger,
        followers: Followers,
        config: GatewayConfig,
        clock: Clock,
        on_end: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._followers = followers
        self._config = config
        self._clock = clock
        self._on_end = on_end

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        handlers: tuple[Handler, ...] = (self._get, self._delete, self._input_items, self._cancel)
        for (method, path), handler in zip(ROUTES, handlers, strict=True):
            yield method, path, handler

    async def _get(self, request: web.Request) -> web.StreamResponse:
        about = self._about(request)
        if request.query.get("stream", "false").lower() not in ("", "false", "0"):
            return await self._follow(request)
        shown = await self._ledger.read(lambda db: records.shown(records.find(db, *about)))
        return web.Response(body=shown, content_type=JSON_TYPE)

    async def _follow(self, request: web.Request) -> web.StreamResponse:
        given = request.query.get("starting_after")
        if given is not None and not EVENT_NUMBER.fullmatch(given):
            raise _bad("starting_after must be the number of an event", "starting_after")
        response_id, owner, _ = self._about(request)
        pieces = self._followers.follow(response_id, owner, -1 if given is None else int(given))
        first = await anext(pieces)
        about = (self._config, self._clock)
        return await send_events(request, Route.RESPONSES, first, pieces, *about)

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        about = self._about(request)
        await self._ledger.change(lambda db: records.delete(db, *about))
        self._on_end(about[0])
        return web.json_response({"id": about[0], "object": "response", "deleted": True})

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        about = self._about(request)
        shown = await self._ledger.change(lambda db: records.shown(records.cancel(db, *about)))
        self._on_end(about[0])
        return web.Response(body=shown, content_type=JSON_TYPE)

    async def _input_items(self, request: web.Request) -> web.StreamResponse:
        about, query = self._about(request), request.query
        order, after = query.get("order", "desc"), query.get("after", "")
        if order not in ("asc", "desc"):
            raise _bad("order must be asc or desc", "order")
        limit = query.get("limit", str(ITEMS_OF_A_PAGE))
        if not LIMIT.fullmatch(limit):
            raise _bad(f"limit must be 1 to {ITEMS_MAX}", "limit")

        def page(db: sqlite3.Connection) -> bytes:
            row = records.find(db, *about)
            listed = conversation.listed(row["items"], row["id"])
            return _page(listed if order == "asc" else listed[::-1], after, int(limit))

        return web.Response(body=await self._ledger.read(page), content_type=JSON_TYPE)

    def _about(self, request: web.Request) -> tuple[str, str, int]:
        """Id, owner, and the time."""
        response_id = request.match_info["response_id"]
        return response_id, request[CALLER].key_id, self._clock.unix_ms()


def _page(listed: list[dict[str, Any]], after: str, limit: int) -> bytes:
    """Raises BatonError(INVALID_REQUEST) where no item is called `after`."""
    if after:
        places = [at for at, item in enumerate(listed) if item["id"] == after]
        if not places:
            raise _bad("after must be the id of an item of this response", "after")
        listed = listed[places[0] + 1 :]
    data = listed[:limit]
    return conversation.encoded(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else "",
            "last_id": data[-1]["id"] if data else "",
            "has_more": len(listed) > limit,
        }
    )


def _bad(sentence: str, param: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, sentence, param=param)

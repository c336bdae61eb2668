"""`/v1/files` and `/v1/batches`, in OpenAI's shapes.

What belongs to one API key does not exist for the others. Without `[gateway.jobs] path` each route
answers 501 with the setting that it needs.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.http.client_connection import taken_in_time
from services.gateway.http.guard import CALLER, reply_headers
from services.gateway.http.request_form import check_body_type, read_body
from services.gateway.jobs import batches, files
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.plan import ENDPOINTS
from services.gateway.jobs.uploads import CHUNK_BYTES, Uploads, seconds_to_keep

FILES, BATCHES = "/v1/files", "/v1/batches"
OFF = "this gateway keeps no files and batches: set [gateway.jobs] path"
ROUTES = (
    ("POST", FILES), ("GET", FILES), ("GET", FILES + "/{id}"), ("DELETE", FILES + "/{id}"),
    ("GET", FILES + "/{id}/content"), ("POST", BATCHES), ("GET", BATCHES),
    ("GET", BATCHES + "/{id}"), ("POST", BATCHES + "/{id}/cancel"),
)  # fmt: skip
#: A client may ask for more files, and gets the rest with the next page.
FILES_ASKED_MAX, FILES_OF_A_PAGE, BATCHES_OF_A_PAGE = 10_000, 1_000, 20
WINDOW = re.compile(r"([1-9]\d{0,2})h")
WINDOW_HOURS_MAX = 336
METADATA_MAX, METADATA_NAME_CHARS, METADATA_CHARS = 16, 64, 512


class _Keep(msgspec.Struct):
    anchor: str
    seconds: int


class BatchOrder(msgspec.Struct):
    """A body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    #: Such as 24h.
    completion_window: str
    metadata: dict[str, str] | None = None
    #: How long the output is kept.
    output_expires_after: _Keep | None = None


def refusing_routes() -> Iterator[tuple[str, str, Handler]]:
    """Of a gateway without jobs."""

    async def handler(_: web.Request) -> web.StreamResponse:
        raise BatonError(Code.NOT_SERVED, OFF)

    for method, path in ROUTES:
        yield method, path, handler


class JobRoutes:
    """`on_batch` is called when there is something to do."""

    def __init__(
        self, ledger: Ledger, config: GatewayConfig, clock: Clock, on_batch: Callable[[], None]
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._jobs = config.jobs
        self._clock = clock
        self._on_batch = on_batch
        self._uploads = Uploads(ledger, config, clock)

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each."""
        handlers: tuple[Handler, ...] = (
            self._upload, self._files, self._file, self._delete, self._content,
            self._create, self._batches, self._batch, self._cancel,
        )  # fmt: skip
        for (method, path), handler in zip(ROUTES, handlers, strict=True):
            yield method, path, handler

    # ------------------------------------------------------------ files

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        owner = request[CALLER].key_id
        file_id = await self._uploads.take(request, owner)
        return await self._shown(lambda db: files.shown(files.find(db, file_id, owner)))

    async def _files(self, request: web.Request) -> web.StreamResponse:
        owner, query = request[CALLER].key_id, request.query
        order = query.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise _bad("order must be asc or desc", "order")
        limit = _limit(query.get("limit"), FILES_OF_A_PAGE, FILES_ASKED_MAX)
        limit = min(limit, FILES_OF_A_PAGE)
        about = (owner, query.get("purpose", ""), query.get("after", ""), limit)
        rows = await self._ledger.read(lambda db: files.page(db, *about, newest=order == "desc"))
        return _page([files.shown(row) for row in rows], limit)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        owner, file_id = request[CALLER].key_id, request.match_info["id"]
        return await self._shown(lambda db: files.shown(files.find(db, file_id, owner)))

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        owner, file_id = request[CALLER].key_id, request.match_info["id"]
        await self._ledger.change(lambda db: files.delete(db, file_id, owner))
        path = self._ledger.path_of(file_id)
        await self._ledger.aside(lambda: path.unlink(missing_ok=True))
        return web.json_response({"id": file_id, "object": "file", "deleted": True})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        owner, file_id = request[CALLER].key_id, request.match_info["id"]
        row = await self._ledger.read(lambda db: files.find(db, file_id, owner))
        path = self._ledger.path_of(file_id)
        try:
            file: BinaryIO = await self._ledger.aside(lambda: path.open("rb"))
        except FileNotFoundError as error:
            raise files.unknown(file_id) from error
        try:
            headers = reply_headers(request, "total", self._clock.monotonic())
            response = web.StreamResponse(
                headers={**headers, "Content-Type": "application/octet-stream"}
            )
            response.content_length = row["bytes"]
            await response.prepare(request)
            while piece := await self._ledger.aside(lambda: file.read(CHUNK_BYTES)):
                if request.transport is None:
                    raise ConnectionResetError("the client left")
                async with taken_in_time(request.transport, self._config):
                    await response.write(piece)
        finally:
            file.close()
        return response

    # ------------------------------------------------------------ batches

    async def _create(self, request: web.Request) -> web.StreamResponse:
        check_body_type(request.headers.get("Content-Type", ""), self._config.body_types)
        order = _order(await read_body(request, self._config))
        owner, now = request[CALLER].key_id, self._clock.unix_ms()
        fields = _fields(order) | {"owner": owner, "created_ms": now}
        fields["expires_ms"] += now
        quota = self._jobs.quota_mib << 20

        def create(db: sqlite3.Connection) -> dict[str, Any]:
            file = files.find(db, order.input_file_id, owner)
            if file["purpose"] != files.BATCH:
                sentence = f'the file was made for "{file["purpose"]}", not for "{files.BATCH}"'
                raise _bad(sentence, "input_file_id")
            if files.used(db, owner) > quota:
                raise files.over_quota(quota)
            return batches.shown(batches.create(db, fields, self._jobs.batches_max))

        shown = await self._ledger.change(create)
        self._on_batch()
        return web.json_response(shown)

    async def _batches(self, request: web.Request) -> web.StreamResponse:
        owner, query = request[CALLER].key_id, request.query
        limit = _limit(query.get("limit"), BATCHES_OF_A_PAGE, batches.PAGE_MAX)
        after = query.get("after", "")
        rows = await self._ledger.read(lambda db: batches.page(db, owner, after, limit))
        return _page([batches.shown(row) for row in rows], limit)

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        owner, batch_id = request[CALLER].key_id, request.match_info["id"]
        return await self._shown(lambda db: batches.shown(batches.find(db, batch_id, owner)))

    async def _cancel(self, request: web.Request) -> web.StreamResponse:
        owner, batch_id = request[CALLER].key_id, request.match_info["id"]
        now = self._clock.unix_ms()
        row = await self._ledger.change(lambda db: batches.cancel(db, batch_id, owner, now))
        self._on_batch()
        return web.json_response(batches.shown(row))

    async def _shown(self, find: Callable[[sqlite3.Connection], dict[str, Any]]) -> web.Response:
        return web.json_response(await self._ledger.read(find))


def _order(body: bytes) -> BatchOrder:
    try:
        return msgspec.json.decode(body, type=BatchOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BatonError(Code.INVALID_REQUEST, f"the body is no batch: {error}") from error


def _fields(order: BatchOrder) -> dict[str, Any]:
    """The columns that a client decides; `expires_ms` counts from now. Raises
    BatonError(INVALID_REQUEST)."""
    if order.endpoint not in {route.value for route in ENDPOINTS}:
        served = ", ".join(route.value for route in ENDPOINTS)
        raise _bad(f"endpoint must be one of {served}", "endpoint")
    match = WINDOW.fullmatch(order.completion_window)
    if match is None or int(match[1]) > WINDOW_HOURS_MAX:
        raise _bad(f"completion_window must be 1h to {WINDOW_HOURS_MAX}h", "completion_window")
    metadata = order.metadata or {}
    long = any(
        len(name) > METADATA_NAME_CHARS or len(value) > METADATA_CHARS
        for name, value in metadata.items()
    )
    if len(metadata) > METADATA_MAX or long:
        bounds = f"{METADATA_NAME_CHARS} and values of {METADATA_CHARS} characters"
        raise _bad(f"metadata may have {METADATA_MAX} names of {bounds}", "metadata")
    keep = order.output_expires_after
    return {
        "endpoint": order.endpoint,
        "input": order.input_file_id,
        "completion_window": order.completion_window,
        "metadata": json.dumps(metadata),
        "expires_ms": int(match[1]) * 3_600_000,
        "output_keep_ms": seconds_to_keep(keep.anchor, keep.seconds) * 1000 if keep else 0,
    }


def _limit(given: str | None, default: int, most: int) -> int:
    if given is None:
        return default
    if given.isascii() and given.isdigit() and len(given) < 7 and 1 <= int(given) <= most:
        return int(given)
    raise _bad(f"limit must be 1 to {most}", "limit")


def _page(shown: list[dict[str, Any]], limit: int) -> web.Response:
    """`shown`: at most one more than `limit`, which tells that there is another page."""
    data = shown[:limit]
    page = {"object": "list", "data": data, "has_more": len(shown) > limit}
    page |= {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return web.json_response(page)


def _bad(sentence: str, param: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, sentence, param=param)

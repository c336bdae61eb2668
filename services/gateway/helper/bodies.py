"""The full API's requests, checked by a helper, and answers that a helper writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from common.config import RequestLimits
from services.gateway.full_api.port import ApiRequest, CheckedBody, Recorded
from services.gateway.full_api.shape import checked_fields
from services.gateway.helper.jobs import (
    INLINE_BYTES_MAX,
    AnswerJob,
    ApiJob,
    ApiReport,
    ShapeJob,
)
from services.gateway.helper.pool import HelperPool

#: Raises BatonError for an image that cannot be fetched, or not from there.
FetchImages = Callable[[list[str]], Awaitable[dict[str, bytes]]]


class BodyChecks:
    """`light`: helpers that need not load vLLM. `context` waits for the longest sequence that the
    fleet takes. `fetch` returns images by URL."""

    def __init__(
        self,
        pool: HelperPool,
        light: HelperPool,
        limits: RequestLimits,
        context: Callable[[], Awaitable[int]],
        fetch: FetchImages,
    ) -> None:
        self._pool = pool
        self._light = light
        self._limits = limits
        self._context = context
        self._fetch = fetch

    async def check_shape(self, api_request: ApiRequest) -> None:
        """What can be said of it before anything has loaded vLLM. Raises BatonError."""
        route, body, origin = api_request.route, api_request.body, api_request.origin
        if len(body) <= INLINE_BYTES_MAX:
            checked_fields(route, body, self._limits, origin.ignored)
        else:
            await self._light.run(ShapeJob(body, 0, route=route), origin.caller.key_id)

    async def check(self, api_request: ApiRequest) -> CheckedBody:
        """Raises BatonError."""
        checked = await self._check(api_request, {})
        if checked.missing_images:
            images = await self._fetch(checked.missing_images)
            checked = await self._check(api_request, images)
        return checked

    async def _check(self, api_request: ApiRequest, images: dict[str, bytes]) -> CheckedBody:
        context, route = await self._context(), api_request.route
        adapter = api_request.adapter
        job = ApiJob(api_request.body, context, route=route, images=images, adapter=adapter)
        report = await self._pool.run(job, api_request.origin.caller.key_id)
        assert isinstance(report, ApiReport)
        return report.checked

    async def answer(
        self, api_request: ApiRequest, checked: CheckedBody, deltas: Recorded
    ) -> bytes:
        """The answer from what the engines sent. Raises BatonError."""
        job = AnswerJob(
            b"",
            await self._context(),
            route=api_request.route,
            request_id=api_request.origin.request_id,
            checked=checked.without_images,
            deltas=deltas,
            adapter=api_request.adapter,
        )
        report = await self._pool.run(job, api_request.origin.caller.key_id)
        assert isinstance(report, ApiReport)
        return report.checked.answer

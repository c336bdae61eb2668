"""The full API's requests, checked by a helper, and answers that a helper writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from services.gateway.full_api.port import ApiRequest, CheckedBody, Recorded
from services.gateway.helper.jobs import AnswerJob, ApiJob, ApiReport
from services.gateway.helper.pool import HelperPool


class BodyChecks:
    """`context` waits for the longest sequence that the fleet takes."""

    def __init__(self, pool: HelperPool, context: Callable[[], Awaitable[int]]) -> None:
        self._pool = pool
        self._context = context

    async def check(self, api_request: ApiRequest) -> CheckedBody:
        """Raises BatonError."""
        job = ApiJob(api_request.body, await self._context(), route=api_request.route)
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
            checked=checked,
            deltas=deltas,
        )
        report = await self._pool.run(job, api_request.origin.caller.key_id)
        assert isinstance(report, ApiReport)
        return report.checked.answer

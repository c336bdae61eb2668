"""The state of the fleet, polled from the admin verbs of a router in each round.

While a dashboard page is open, everything it shows is polled; otherwise only the points of the
charts. A standby router is polled when the previous router does not answer.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from common.clock import Clock
from common.errors import BatonError
from common.net.admin_client import ask
from common.net.admin_rows import PairRow
from common.net.admin_status import Status
from services.health.dashboard.series import Series

ROUTER_SECONDS = 1.0
EVENTS_MAX = 50
ROWS = 25
LISTS = ("recent", "slow", "failed", "refused")
WORKER = (
    "name", "role", "model", "state", "reason", "requests", "requests_max", "queued_tokens",
    "kv_used", "kv_tokens_promised", "kv_tokens_max", "running", "waiting", "step_age_ms",
    "since_s", "not_paired_with", "verdict", "verdict_reason", "accepted", "tokens_per_output",
)  # fmt: skip


class FleetWatch:
    """Polls the admin sockets of the routers in the order of `admins`."""

    def __init__(self, admins: list[str], clock: Clock) -> None:
        self._admins = admins
        self._clock = clock
        self._last_event = -1
        #: The points of the charts.
        self.series = Series()
        #: The answer to `status`; None while no router answers.
        self.status: Status | None = None
        #: Workers, pairs, queue and requests, as the page shows them.
        self.details: dict[str, Any] = {}
        #: Rows of the pairs of workers between which no KV can be transferred.
        self.troubled_pairs: list[PairRow] = []
        #: The latest entries of the router's event log.
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    async def poll(self, *, closely: bool) -> None:
        """One round."""
        await self._find()
        if self.status is None:
            self.troubled_pairs = []
            return
        recent = await self._recent()
        self.series.add(self._clock.monotonic(), self._clock.unix_ms(), self.status, recent)
        await self._note_events()
        troubled = await self._ask("pairs", {"trouble": True, "limit": ROWS}) or []
        self.troubled_pairs = msgspec.convert(troubled, list[PairRow])
        if closely:
            await self._poll_details(recent)

    async def refresh(self) -> None:
        """Polls what a new page shows besides the charts."""
        await self._poll_details(await self._recent())

    async def _recent(self) -> list[dict[str, Any]]:
        return await self._ask("explain", {"list": "recent", "limit": 256}) or []

    async def explain(self, request_id: str) -> tuple[Any, str]:
        """The verb's result, or why there is none."""
        try:
            answer = await ask(self._admins[0], "explain", {"id": request_id}, ROUTER_SECONDS)
        except BatonError as error:
            return None, error.message
        return (answer.result, "") if answer.ok else (None, answer.error.get("message", ""))

    def page_state(self) -> dict[str, Any]:
        """The state for the page. It contains no content of requests."""
        return {
            "unix_ms": self._clock.unix_ms(),
            "status": msgspec.to_builtins(self.status),
            "events": list(self.events),
            "points": list(self.series.points),
            **self.details,
        }

    async def _find(self) -> None:
        for index, _ in enumerate(self._admins):
            answer = await self._ask("status", {})
            self.status = None if answer is None else msgspec.convert(answer, Status)
            if self.status is not None:
                return
            if index + 1 < len(self._admins):
                self._admins.append(self._admins.pop(0))
                self._last_event = -1

    async def _poll_details(self, recent: list[dict[str, Any]]) -> None:
        workers = await self._ask("workers", {}) or []
        self.details = {
            "workers": [{field: row.get(field) for field in WORKER} for row in workers],
            "pairs": await self._ask("pairs", {}) or [],
            "stores": await self._ask("store", {}) or [],
            "queue": await self._ask("requests", {"queue": True, "limit": 10}) or [],
            "requests": {
                "recent": recent[:ROWS],
                **{
                    which: await self._ask("explain", {"list": which, "limit": ROWS}) or []
                    for which in LISTS[1:]
                },
            },
        }

    async def _note_events(self) -> None:
        log = await self._ask("events", {"after": self._last_event, "limit": EVENTS_MAX})
        if log is not None:
            self._last_event = log["last"]
            self.events.extend(log["events"])

    async def _ask(self, verb: str, args: dict[str, Any]) -> Any:
        """None when the router does not answer, or is too old for the question."""
        try:
            answer = await ask(self._admins[0], verb, args, seconds=ROUTER_SECONDS)
        except BatonError:
            return None
        return answer.result if answer.ok else None

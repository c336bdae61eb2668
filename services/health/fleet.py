"""What the health daemon knows of the fleet: the answers of a router's verbs, asked each round.

While somebody watches the dashboard everything it shows is asked for; otherwise only what the
charts need to have a past. A standby is asked when the router asked before does not answer.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from common.admin import ask
from common.clock import Clock
from common.errors import BatonError
from services.health.series import Series

ROUTER_SECONDS = 1.0
EVENTS_MAX = 50
ROWS = 25
LISTS = ("recent", "slow", "failed", "refused")
WORKER = (
    "name", "role", "state", "reason", "requests", "requests_max", "queued_tokens", "kv_used",
    "kv_tokens_promised", "kv_tokens_max", "running", "waiting", "step_age_ms", "since_s",
    "not_paired_with", "verdict", "verdict_reason",
)  # fmt: skip


class FleetWatch:
    """`admins`: admin sockets, in the order in which they are asked. `status`: None while no router
    answers. `apart`: rows of pairs of workers that do not hand KV over."""

    def __init__(self, admins: list[str], clock: Clock) -> None:
        self._admins = admins
        self._clock = clock
        self._last_event = -1
        self.series = Series()
        self.status: dict[str, Any] | None = None
        self.details: dict[str, Any] = {}
        self.apart: list[dict[str, Any]] = []
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    async def look(self, *, closely: bool) -> None:
        """One round."""
        await self._find()
        if self.status is None:
            self.apart = []
            return
        recent = await self._recent()
        self.series.add(self._clock.monotonic(), self._clock.unix_ms(), self.status, recent)
        await self._note_events()
        self.apart = await self._ask("pairs", {"trouble": True, "limit": ROWS}) or []
        if closely:
            await self._look_closely(recent)

    async def refresh(self) -> None:
        """What a page that has just opened shows beside the charts."""
        await self._look_closely(await self._recent())

    async def _recent(self) -> list[dict[str, Any]]:
        return await self._ask("explain", {"list": "recent", "limit": 256}) or []

    async def explain(self, request_id: str) -> tuple[Any, str]:
        """The verb's result, or why there is none."""
        try:
            answer = await ask(self._admins[0], "explain", {"id": request_id}, ROUTER_SECONDS)
        except BatonError as error:
            return None, error.message
        return (answer.result, "") if answer.ok else (None, answer.error.get("message", ""))

    def shown(self) -> dict[str, Any]:
        """For the page: nothing of the content of a request."""
        return {
            "unix_ms": self._clock.unix_ms(),
            "status": self.status,
            "events": list(self.events),
            "points": list(self.series.points),
            **self.details,
        }

    async def _find(self) -> None:
        for index, _ in enumerate(self._admins):
            self.status = await self._ask("status", {})
            if self.status is not None:
                return
            if index + 1 < len(self._admins):
                self._admins.append(self._admins.pop(0))
                self._last_event = -1

    async def _look_closely(self, recent: list[dict[str, Any]]) -> None:
        workers = await self._ask("workers", {}) or []
        self.details = {
            "workers": [{field: row.get(field) for field in WORKER} for row in workers],
            "pairs": await self._ask("pairs", {}) or [],
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
        told = await self._ask("events", {"after": self._last_event, "limit": EVENTS_MAX})
        if told is not None:
            self._last_event = told["last"]
            self.events.extend(told["events"])

    async def _ask(self, verb: str, args: dict[str, Any]) -> Any:
        """None when the router does not answer, or is too old for the question."""
        try:
            answer = await ask(self._admins[0], verb, args, seconds=ROUTER_SECONDS)
        except BatonError:
            return None
        return answer.result if answer.ok else None

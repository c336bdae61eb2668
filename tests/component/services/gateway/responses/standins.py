"""A stand-in for vLLM's classes behind a gateway that stores responses, and the way to ask it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from common.clock import SystemClock
from common.errors import BatonError
from common.process.lifecycle import Tasks
from services.gateway.daemon import Gateway
from services.gateway.full_api.port import ApiRequest, EventReply, JsonReply
from services.gateway.jobs.ledger import LEDGER
from services.gateway.text.light import LightText
from tests.component.services.gateway.rig import MakeRig, Rig
from tests.rigs.peers import WAIT_SECONDS

URL = "/v1/responses"
BACKGROUND: dict[str, Any] = {"background": True}


class Standin:
    """Answers with the number of the request. `holds`: whether answers wait for `release`.
    `errors`: what comes in their place, in turn."""

    def __init__(self) -> None:
        self.requests: list[ApiRequest] = []
        self.ended: list[ApiRequest] = []
        self.errors: list[BatonError] = []
        #: Of a stream, after its first events.
        self.breaks: BatonError | None = None
        self.status = "completed"
        #: The texts of a stream. `{}` is the number of its request.
        self.deltas = ["{}"]
        #: Whether streams wait for `release` before their last text.
        self.holds_streams = False
        self.holds = False
        #: Whether one that is broken off takes until `release` to end. A stream then goes on.
        self.lingers = False
        self.came = asyncio.Event()
        self.release = asyncio.Event()
        self.cancelled = asyncio.Event()

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The bodies."""
        return [json.loads(api_request.body) for api_request in self.requests]

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        self.requests.append(api_request)
        self.came.set()
        if self.errors:
            raise self.errors.pop(0)
        while self.holds and not self.release.is_set():
            await self._released()
        shown = {
            "id": f"resp_{api_request.origin.request_id}",
            "created_at": 1,
            "object": "response",
            "status": self.status,
            "output": [message(f"answer {len(self.requests)}")],
        }
        if json.loads(api_request.body).get("stream"):
            return EventReply(self._events(shown, api_request))
        return JsonReply(json.dumps(shown).encode())

    async def _released(self) -> None:
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            if self.lingers:
                await self.release.wait()
            raise

    async def _events(self, shown: dict[str, Any], request: ApiRequest) -> AsyncIterator[bytes]:
        request.has_output = True
        begun, texts = shown | {"output": [], "status": "in_progress"}, len(self.deltas)
        told: list[tuple[str, dict[str, Any]]] = [
            ("created", {"response": begun}),
            ("in_progress", {"response": begun}),
            *(("output_text.delta", {"delta": text}) for text in self.deltas),
            ("completed", {"response": shown}),
        ]
        number = len(self.requests)
        for at, (name, part) in enumerate(told):
            if self.holds_streams and at == texts + 1:
                with suppress(*[asyncio.CancelledError] * self.lingers):
                    await self._released()
            event = {"type": f"response.{name}", "sequence_number": at, **part}
            if "delta" in event:
                event["delta"] = event["delta"].format(number)
            yield f"event: response.{name}\ndata: {json.dumps(event)}\n\n".encode()
            if self.breaks is not None and name == "in_progress":
                raise self.breaks

    def set_context(self, tokens: int) -> None: ...

    def end(self, api_request: ApiRequest, reason: str) -> None:
        self.ended.append(api_request)


def message(text: str) -> dict[str, Any]:
    content: Any = [{"type": "output_text", "text": text, "annotations": [], "logprobs": None}]
    return {"type": "message", "role": "assistant", "id": "msg_1", "content": content}


def said(body: dict[str, Any]) -> list[str]:
    """The texts of its input, in order."""
    texts = []
    for item in body["input"]:
        content = item["content"]
        texts.append(content if isinstance(content, str) else content[0]["text"])
    return texts


async def behind(make_rig: MakeRig, standin: Standin, **gateway: Any) -> Rig:
    rig = await make_rig(text="auto", **gateway)
    rig.stand_in(standin)
    await rig.ready()
    return rig


@asynccontextmanager
async def beside(rig: Rig, standin: Standin, light: LightText) -> AsyncIterator[Rig]:
    """A second gateway of the same host. The router answers it alone from then on."""
    daemon = Gateway(
        rig.config, "g1", {"m": light}, {"m": "/model"}, SystemClock(), structlog.get_logger("g1")
    )
    tasks = Tasks()
    await daemon.start(tasks)
    host, port = daemon.http_address
    other = Rig(rig.config, daemon, tasks, rig.http, f"http://{host}:{port}", rig.router)
    other.stand_in(standin)
    try:
        yield other
    finally:
        await daemon.stop()
        await tasks.cancel_all()


async def post(
    rig: Rig, status: int = 200, headers: dict[str, str] | None = None, **body: Any
) -> Any:
    given = {"model": "m", "input": "hi"} | body
    async with rig.http.post(f"{rig.url}{URL}", json=given, headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def at(
    rig: Rig,
    path: str,
    status: int = 200,
    method: str = "GET",
    headers: dict[str, str] | None = None,
) -> Any:
    url = f"{rig.url}{URL}/{path}"
    async with rig.http.request(method, url, headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def until(rig: Rig, response_id: str, *status: str) -> Any:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            shown = await at(rig, response_id)
            if shown["status"] in status:
                return shown


def in_ledger(jobs: dict[str, Any], order: str) -> list[Any]:
    ledger = sqlite3.connect(Path(jobs["path"]) / LEDGER)
    try:
        with ledger:
            return ledger.execute(order).fetchall()
    finally:
        ledger.close()


async def until_counted(rig: Rig, outcome: str, count: int) -> None:
    """So many background responses ended so."""
    line = f'baton_gateway_background_responses_total{{outcome="{outcome}"}} {count}.0'
    async with asyncio.timeout(WAIT_SECONDS):
        while line not in await (await rig.http.get(f"{rig.url}/metrics")).text():
            pass

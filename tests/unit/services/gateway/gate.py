"""A gateway core with a clock; invariants are checked after every event."""

from __future__ import annotations

from typing import Any

from common.config import GatewayConfig
from common.errors import BatonError
from common.messages import Delta, ImageFeatures, KeptOrders, Placed, RequestSummary, Sampling
from common.model.byte_tokenizer import build_tokenizer
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.requests.core import Core
from services.gateway.requests.events import (
    Action,
    Event,
    FromRouter,
    Opened,
    Report,
    RouterUp,
    Stepped,
    ToRouter,
    ToWorker,
)
from services.gateway.streams.answer import Collected
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from services.gateway.text.detokenizer import ByteLevelDetokenizer, byte_level_pieces

PIECES = byte_level_pieces(build_tokenizer())
D0, D1 = b"d0|1", b"d1|1"
WAIT_MS = 1000.0


class Once(Collected):
    """An answer that insists on ending once."""

    ends = 0

    def _end(self) -> None:
        self.ends += 1
        assert self.ends == 1
        super()._end()


class Gate:
    """One core, the answers of its requests by id, and the ways of those that are over."""

    def __init__(self, *, up: bool = True, max_streams: int = 100, **limits: Any) -> None:
        limits = {"recovery": False, "router_wait_ms": WAIT_MS} | limits
        self.core = Core(GatewayConfig(max_streams=max_streams, **limits))
        self.now = 0.0
        self.answers: dict[str, Once] = {}
        self.summaries: list[RequestSummary] = []
        #: What it told routers of the orders that it keeps.
        self.kept: list[KeptOrders] = []
        if up:
            self.do(RouterUp())

    def do(self, event: Event) -> list[Action]:
        actions = self.core.handle(event, self.now)
        self.core.check_invariants()
        self.summaries += [action.summary for action in actions if isinstance(action, Report)]
        self.kept += [
            a.message
            for a in actions
            if isinstance(a, ToRouter) and isinstance(a.message, KeptOrders)
        ]
        return [a for a in actions if not (isinstance(a, Report) or _is_kept(a))]

    def open(
        self,
        request_id: str = "r",
        *,
        stop: str = "",
        deadline_ms: float = 0,
        images: tuple[ImageFeatures, ...] = (),
        attended: bool = True,
        adapter: str = "",
    ) -> list[Action]:
        sampling = Sampling(max_tokens=50)
        spec = RequestSpec(
            *(Kind.CHAT, request_id, "m", 0, [1, 2], sampling),
            deadline_ms=deadline_ms,
            images=images,
            attended=attended,
            adapter=adapter,
        )
        answer = self.answers[request_id] = Once()
        stream = TextStream(
            Journal([1, 2], 50),
            spec.sampling,
            ByteLevelDetokenizer(PIECES),
            answer,
            stops=(stop,) if stop else (),
        )
        return self.do(Opened(spec, stream, answer))

    def place(self, request_id: str = "r", decode: str = "d0") -> list[Action]:
        placed = Placed(request_id=request_id, attempt=1, decode=decode, decode_incarnation="1")
        return self.do(FromRouter(placed))

    def token(self, text: str, index: int = 0, worker: bytes = D0, end: str = "") -> list[Action]:
        delta = Delta("r", 1, index, list(text.encode()), finish_reason=end)
        return self.do(Stepped(worker, [delta]))

    def error(self, request_id: str = "r") -> BatonError:
        error = self.answers[request_id].error
        assert error is not None
        return error


def _is_kept(action: Action) -> bool:
    return isinstance(action, ToRouter) and isinstance(action.message, KeptOrders)


def sent(actions: list[Action]) -> list[object]:
    """What leaves the process, as (receiver, message)."""
    out: list[object] = []
    for action in actions:
        if isinstance(action, ToRouter):
            out.append(type(action.message).__name__)
        elif isinstance(action, ToWorker):
            out.append((action.worker, type(action.message).__name__))
    return out

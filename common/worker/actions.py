"""What worker cores hear and what they ask for; the vocabulary between `core.py` and the shell.

The shell (`common.worker.daemon`) turns sockets and the engine into these events, and carries out
the actions in order. Messages of `common.messages` are events and payloads as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.engine.port import Batch, EngineRequest
from common.messages import Abort, Decode, Delta, Message, Prefill, RequestBody


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Router gave work; `body` is already decoded."""

    message: Prefill | Decode
    body: RequestBody


@dataclass(frozen=True, slots=True)
class EngineRefused:
    """`Engine.add` raised for this try: no output will follow."""

    request_id: str
    attempt: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """The stream connection to this gateway is closed or does not take more."""

    gateway: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class DrainOver:
    """This worker must leave soon: what it still streams goes on elsewhere."""

    reason: str


Event = Dispatched | Abort | Batch | EngineRefused | GatewayGone | DrainOver


@dataclass(frozen=True, slots=True)
class AddToEngine:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class AbortInEngine:
    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ToRouter:
    message: Message


@dataclass(frozen=True, slots=True)
class ToGateway:
    """All deltas of one step for one gateway. `endpoint`: where its stream socket is bound."""

    gateway: str
    incarnation: str
    endpoint: str
    deltas: list[Delta]


Action = AddToEngine | AbortInEngine | ToRouter | ToGateway

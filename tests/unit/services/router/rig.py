"""A router core for tests: messages of peers go in, what it sends is collected, and its invariants
are checked after every event."""

from __future__ import annotations

import random
from itertools import count
from typing import Any, TypeVar

from common.messages import (
    Beat,
    Cancel,
    DecodeStarted,
    Ended,
    KvReport,
    Leaving,
    Load,
    Message,
    PrefillEnded,
    Role,
    Submit,
    ToRouter,
)
from services.router.core import Core
from services.router.events import Action, Event, PeerGone, Received, Send, Tick
from services.router.records.attempt import Attempt
from services.router.records.worker import Worker
from services.router.settings import Settings
from tests.rigs import messages
from tests.rigs.messages import hello, worker_hello

M = TypeVar("M", bound=Message)

MOVED = KvReport(
    blocks=3, complete=True, messages=1, payload_bytes=3072, wire_bytes=3100, early_bytes=2304
)


class Rig:
    """`start` is not 0, so that no test passes because an instant is falsy."""

    def __init__(self, start: float = 100.0, **settings: Any) -> None:
        self.now = start
        #: Otherwise one more of the lowest class may begin at each Submit, as if time had passed.
        self.paced = False
        secrets = (n.to_bytes(16) for n in count())
        self.core = Core(
            Settings(**settings), lambda: next(secrets), random.Random(1).random, start
        )
        self.sent: list[Send] = []

    def handle(self, event: Event) -> list[Action]:
        actions = self.core.handle(event, self.now)
        self.core.check_invariants()
        self.sent += [action for action in actions if isinstance(action, Send)]
        return actions

    def receive(self, peer: str, message: ToRouter, body: bytes | None = None) -> list[Action]:
        if isinstance(message, Submit) and not self.paced:
            for worker in self.core.shared.workers():
                worker.pace.ended()
        return self.handle(Received(peer, message, body))

    def tick(self, seconds: float = 0.0, *, alive: tuple[str, ...] = ()) -> list[Action]:
        """Time passes in steps as the daemon's do; `alive` peers beat."""
        actions = []
        for _ in range(max(1, round(seconds / 0.2))):
            self.now += min(seconds, 0.2)
            for peer in alive:
                self.beat(peer)
            actions += self.handle(Tick())
        return actions

    def gone(self, peer: str) -> list[Action]:
        return self.handle(PeerGone(peer, "its connection closed"))

    def take(self, kind: type[M], peer: str | None = None) -> list[M]:
        """Removes and returns what was sent of this kind (to this peer)."""
        found: list[M] = []
        rest: list[Send] = []
        for send in self.sent:
            if isinstance(send.message, kind) and peer in (None, send.peer):
                found.append(send.message)
            else:
                rest.append(send)
        self.sent = rest
        return found

    def gateway(self, name: str = "g0", incarnation: str = "1") -> str:
        peer = f"{name}|{incarnation}"
        self.receive(peer, hello(Role.GATEWAY, name, incarnation, stream_endpoint=f"ipc://{name}"))
        return peer

    def worker(self, role: Role, name: str, incarnation: str = "1", **more: Any) -> str:
        """Says Hello and one Beat."""
        peer = f"{name}|{incarnation}"
        self.receive(peer, worker_hello(role, name, incarnation, **more))
        self.beat(peer)
        return peer

    def prefill(self, name: str = "p0", incarnation: str = "1", **more: Any) -> str:
        return self.worker(Role.PREFILL, name, incarnation, **more)

    def decode(self, name: str = "d0", incarnation: str = "1", **more: Any) -> str:
        return self.worker(Role.DECODE, name, incarnation, **more)

    def beat(self, peer: str, load: Load | None = None) -> None:
        self.receive(peer, Beat(load=load or Load(running=1, kv_used=0.001)))

    def leave(self, peer: str) -> None:
        self.receive(peer, Leaving(reason="stopping"))

    def submit(
        self,
        request_id: str = "r1",
        attempt: int = 1,
        *,
        prompt: int = 40,
        out: int = 8,
        gateway: str = "g0|1",
        body: bytes | None = b"body",
        **about: Any,
    ) -> list[Action]:
        """`about`: further fields of `Submit`."""
        more: dict[str, Any] = {"prompt_tokens": prompt, "max_tokens": out, **about}
        return self.receive(gateway, messages.submit(request_id, attempt, **more), body)

    def cancel(self, request_id: str = "r1", attempt: int = 1, gateway: str = "g0|1") -> None:
        self.receive(gateway, Cancel(request_id=request_id, attempt=attempt, reason="client left"))

    def prefilled(
        self, request_id: str = "r1", attempt: int = 1, *, peer: str = "p0|1", **more: Any
    ) -> None:
        report = PrefillEnded(request_id=request_id, attempt=attempt, elapsed_ms=3.0, **more)
        self.receive(peer, report)

    def started(
        self,
        request_id: str = "r1",
        attempt: int = 1,
        *,
        peer: str = "d0|1",
        kv: KvReport | None = MOVED,
        kv_ms: float = 0.0,
    ) -> None:
        started = DecodeStarted(
            request_id=request_id, attempt=attempt, elapsed_ms=5.0, kv=kv, kv_ms=kv_ms
        )
        self.receive(peer, started)

    def ended(
        self, request_id: str = "r1", attempt: int = 1, *, peer: str = "d0|1", error: str = ""
    ) -> None:
        reason = "" if error else "length"
        message = Ended(
            request_id=request_id,
            attempt=attempt,
            finish_reason=reason,
            completion_tokens=8,
            decode_ms=70.0,
            error=error,
        )
        self.receive(peer, message)

    def known(self, request_id: str = "r1", attempt: int = 1) -> Attempt:
        """The attempt, live or over."""
        shared = self.core.shared
        live = shared.attempt((request_id, attempt))
        over = [t for t in (*shared.history, *shared.refusals) if t.key == (request_id, attempt)]
        return live or over[-1]

    def state(self, request_id: str = "r1", attempt: int = 1) -> str:
        return self.known(request_id, attempt).state.value

    def row(self, peer: str) -> Worker:
        return self.core.shared.owners[peer].workers[peer]

    def nothing_held(self) -> bool:
        workers = self.core.shared.workers()
        return not any(w.held_tokens or w.queued_tokens or w.held for w in workers)


def standard(**settings: Any) -> Rig:
    """One gateway, one prefill and one decode worker, nothing left to read."""
    rig = Rig(**settings)
    rig.gateway()
    rig.prefill()
    rig.decode()
    for peer in ("p0|1", "d0|1"):
        rig.beat(peer, Load())
    rig.sent.clear()
    return rig

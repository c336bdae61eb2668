"""Two cells of production router cores behind the production core of a gateway, in virtual time:
one is lost, the streams of the other go on, those of the lost one are continued, and what a key may
use does not change."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from common.config import GatewayConfig
from common.errors import Code
from common.messages import (
    Beat,
    Decode,
    DecodeStarted,
    Delta,
    Ended,
    KeyLimits,
    KvReport,
    Live,
    Load,
    RequestBody,
    Role,
    Sampling,
)
from common.net.wire import Decoder, encode
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.auth.caller import Caller
from services.gateway.cells import rendezvous
from services.gateway.cells.core import CellsCore
from services.gateway.requests.events import (
    Action,
    Event,
    FromRouter,
    Opened,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
    WorkerGone,
)
from services.gateway.streams.answer import Collected
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from services.router.core import Core
from services.router.events import Received, Send
from services.router.events import Tick as RouterTick
from services.router.settings import Settings
from tests.rigs.messages import hello, worker_hello

STEP = 0.1
PER_MINUTE = 240.0
CELLS = {"c0": 1.0, "c1": 1.0}
MODEL = "model"
BODY: Decoder[RequestBody] = Decoder(RequestBody)


@dataclass
class Stream:
    """What a worker runs: one token a step."""

    worker: str
    request_id: str
    attempt: int
    left: int
    index: int = 0


@dataclass
class CellRig:
    """A router with one decode worker."""

    name: str
    core: Core
    alive: bool = True
    streams: dict[tuple[str, int], Stream] = field(default_factory=dict)


class Letters:
    def push(self, token_ids: list[int]) -> str:
        return "x" * len(token_ids)

    def flush(self) -> str:
        return ""


class World:
    """`answers`: by request id."""

    def __init__(self) -> None:
        self.now = 1.0
        self.ids = count()
        self.answers: dict[str, Collected] = {}
        self.gateway = CellsCore(GatewayConfig(max_streams=10_000), 100, CELLS)
        self.cells: dict[str, CellRig] = {}
        for name in CELLS:
            self._start(name)
        self.pass_time(1.0)

    def _start(self, name: str) -> None:
        settings = Settings(models=(MODEL,), remote_prefill="never")
        core = Core(settings, lambda: bytes(16), random.Random(1).random, self.now)
        cell = self.cells[name] = CellRig(name, core)
        self.route(cell, "g0|1", hello(Role.GATEWAY, "g0", "1", stream_endpoint="ipc://x"))
        worker = worker_hello(Role.DECODE, "d0", name, blocks=4_000, seqs=64, max_model_len=8_192)
        self.route(cell, f"d0|{name}", worker)
        self.tell(RouterUp(), name)
        self.route(cell, "g0|1", Live(attempts=(), complete=True))

    def lose(self, name: str) -> None:
        """Its router and its worker are killed."""
        self.cells[name].alive = False
        self.tell(RouterDown(), name)
        self.tell(WorkerGone(f"d0|{name}".encode(), "killed"))

    # ------------------------------------------------------------ carrying messages

    def tell(self, event: Event, cell: str = "") -> None:
        self._carry_out(self.gateway.handle(event, self.now, cell))
        self.gateway.check_invariants()

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, ToRouter) and self.cells[action.cell].alive:
                body = None if action.body is None else encode(action.body)
                self.route(self.cells[action.cell], "g0|1", action.message, body)

    def route(self, cell: CellRig, peer: str, message: Any, body: bytes | None = None) -> None:
        self._follow(cell, cell.core.handle(Received(peer, message, body), self.now))

    def _follow(self, cell: CellRig, actions: list[Any]) -> None:
        for action in actions:
            if not isinstance(action, Send):
                continue
            if action.peer == "g0|1":
                self.tell(FromRouter(action.message), cell.name)  # type: ignore[arg-type]
            elif isinstance(action.message, Decode):
                order, body = action.message, BODY.decode(action.body or b"")
                tokens = body.sampling.max_tokens
                stream = Stream(action.peer, order.request_id, order.attempt, tokens)
                cell.streams[order.request_id, order.attempt] = stream

    # ------------------------------------------------------------ time

    def pass_time(self, seconds: float) -> None:
        ends = self.now + seconds - 1e-9
        while self.now < ends:
            self.now += STEP
            for cell in [cell for cell in self.cells.values() if cell.alive]:
                self.route(cell, f"d0|{cell.name}", Beat(load=Load(running=len(cell.streams))))
                self.route(cell, "g0|1", Beat())
                for stream in list(cell.streams.values()):
                    self._step(cell, stream)
                self._follow(cell, cell.core.handle(RouterTick(), self.now))
            self.tell(Tick())

    def _step(self, cell: CellRig, stream: Stream) -> None:
        about: dict[str, Any] = {"request_id": stream.request_id, "attempt": stream.attempt}
        if stream.index == 0:
            report = KvReport(blocks=0, complete=True)
            self.route(cell, stream.worker, DecodeStarted(**about, elapsed_ms=1.0, kv=report))
        end = "length" if stream.left == 1 else ""
        delta = Delta(stream.request_id, stream.attempt, stream.index, [97], finish_reason=end)
        stream.index, stream.left = stream.index + 1, stream.left - 1
        if end:
            del cell.streams[stream.request_id, stream.attempt]
            self.route(cell, stream.worker, Ended(**about, finish_reason=end))
        self.tell(Stepped(stream.worker.encode(), [delta]))

    # ------------------------------------------------------------ clients

    def ask(self, caller: Caller, tokens: int = 1) -> Collected:
        request_id = f"r{next(self.ids)}"
        prompt = [1, 2, 3, 4]
        spec = RequestSpec(
            Kind.CHAT, request_id, MODEL, 0, prompt, Sampling(max_tokens=tokens), session=""
        )
        answer = self.answers[request_id] = Collected(lambda: None)
        stream = TextStream(Journal(prompt, tokens), spec.sampling, Letters(), answer, stops=())
        self.tell(Opened(spec, stream, answer, caller))
        return answer

    def served(self, caller: Caller, seconds: float) -> int:
        """Of ten requests a second, how many are served in this time."""
        asked = []
        for _ in range(round(seconds / STEP)):
            asked.append(self.ask(caller))
            self.pass_time(STEP)
        self.pass_time(1.0)
        codes = {answer.error.code for answer in asked if answer.error is not None}
        assert codes <= {Code.RATE_LIMITED}
        return sum(answer.error is None and answer.ending is not None for answer in asked)


def caller_of(cell: str, limits: KeyLimits | None = None) -> Caller:
    tenants = (f"t{n}" for n in range(100))
    tenant = next(t for t in tenants if rendezvous.order(b"tenant " + t.encode(), CELLS)[0] == cell)
    return replace(Caller(), key_id=tenant, tenant=tenant, limits=limits)


def test_a_lost_cell_harms_no_stream() -> None:
    world = World()
    streams = {cell: [world.ask(caller_of(cell), tokens=60) for _ in range(16)] for cell in CELLS}
    world.pass_time(2.0)
    assert all(len(cell.streams) == 16 for cell in world.cells.values())
    attempts = {key[1] for key in world.cells["c0"].streams}
    world.lose("c1")
    new = [world.ask(caller_of("c1"), tokens=3) for _ in range(8)]
    world.pass_time(1.5)
    of_c0 = [k for k in world.cells["c0"].streams if int(k[0][1:]) < 16]
    assert {number for _, number in of_c0} == attempts == {1}, "untouched"
    world.pass_time(8.0)
    for answer in (*streams["c0"], *streams["c1"], *new):
        assert answer.error is None
    assert {len(a.token_ids) for a in (*streams["c0"], *streams["c1"])} == {60}
    assert {len(answer.token_ids) for answer in new} == {3}
    assert world.gateway.active == 0


@pytest.mark.parametrize("lost", [False, True])
def test_what_a_key_may_use_does_not_change_by_the_loss_of_its_cell(*, lost: bool) -> None:
    """Ten requests a second ask, four may be served."""
    world = World()
    caller = caller_of("c1", KeyLimits(requests_per_min=PER_MINUTE))
    world.served(caller, 120.0)
    at_home = world.served(caller, 60.0)
    if lost:
        world.lose("c1")
    after = world.served(caller, 60.0)
    print(f"{at_home} a minute at home, then {after} where its cell is {'lost' if lost else 'up'}")
    allowed = 0.05 * PER_MINUTE + PER_MINUTE / 60  # the second that the last answers take
    assert abs(at_home - PER_MINUTE) <= allowed
    assert abs(after - PER_MINUTE) <= allowed

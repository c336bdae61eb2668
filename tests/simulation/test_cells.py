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
    #: Whether the gateway reaches it.
    alive: bool = True
    killed: bool = False
    streams: dict[tuple[str, int], Stream] = field(default_factory=dict)


class Letters:
    def push(self, token_ids: list[int]) -> str:
        return "x" * len(token_ids)

    def flush(self) -> str:
        return ""


class World:
    """`answers`: by request id."""

    def __init__(self, **limits: Any) -> None:
        self.now = 1.0
        self.ids = count()
        self.answers: dict[str, Collected] = {}
        self.gateway = CellsCore(GatewayConfig(max_streams=10_000, **limits), 100, CELLS)
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
        self.cells[name].alive, self.cells[name].killed = False, True
        self.tell(RouterDown(), name)
        self.tell(WorkerGone(f"d0|{name}".encode(), "killed"))

    def cut_off(self, name: str) -> None:
        """The gateway no longer reaches its router, which stands still meanwhile."""
        self.cells[name].alive = False
        self.tell(RouterDown(), name)

    def bring_back(self, name: str) -> None:
        """A router that was killed knows nothing; one that was cut off knows what it knew."""
        if self.cells[name].killed:
            self._start(name)
        else:
            self.cells[name].alive = True
            self.tell(RouterUp(), name)
        self.pass_time(STEP)

    def fill(self, name: str, *, full: bool) -> None:
        """Whether an operator lets the cell take no request."""
        tables = self.cells[name].core.tables
        tables.set_limits(replace(tables.limits, queue_bytes_max=1 if full else 1 << 20))

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
            made = Ended(**about, finish_reason=end, completion_tokens=stream.index)
            self.route(cell, stream.worker, made)
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


@pytest.mark.parametrize(
    ("how", "limits"),
    [
        ("stays up", KeyLimits(requests_per_min=PER_MINUTE)),
        ("is killed", KeyLimits(requests_per_min=PER_MINUTE)),
        ("is killed", KeyLimits(tokens_per_min=6 * PER_MINUTE)),
        ("is cut off", KeyLimits(requests_per_min=PER_MINUTE)),
    ],
)
def test_what_a_key_may_use_does_not_change_when_its_cell_is_lost_and_comes_back(
    how: str, limits: KeyLimits
) -> None:
    """Ten requests a second ask, four may be served. A request costs six tokens."""
    world = World()
    caller = caller_of("c1", limits)
    world.served(caller, 60.0)
    minutes = [world.served(caller, 60.0)]
    if how == "is killed":
        world.lose("c1")
    elif how == "is cut off":
        world.cut_off("c1")
    minutes.append(world.served(caller, 60.0))
    if how != "stays up":
        world.bring_back("c1")
    minutes += [world.served(caller, 60.0) for _ in range(2)]
    print(f"its cell {how}: {minutes} of {PER_MINUTE:.0f} a minute at home, away, and back")
    allowed = 0.05 * PER_MINUTE + PER_MINUTE / 60  # the second that the last answers take
    assert all(abs(minute - PER_MINUTE) <= allowed for minute in minutes)
    assert sum(minutes) <= 1.05 * PER_MINUTE * 4 * 61 / 60


def test_what_a_full_cell_passes_on_adds_a_twentieth_at_most() -> None:
    """The cell has room in every other moment, and all that it refuses may be tried elsewhere."""
    world = World(cell_spill_share=1.0)
    caller = caller_of("c1", KeyLimits(requests_per_min=PER_MINUTE))
    asked: list[list[Collected]] = [[], []]
    for minutes in asked:
        for step in range(1_200):
            world.fill("c1", full=step % 2 == 0)
            minutes.append(world.ask(caller))
            world.pass_time(STEP)
    served = sum(answer.ending is not None for answer in asked[1])
    print(f"{served} of {2 * PER_MINUTE:.0f} in two minutes")
    assert 0.97 * 2 * PER_MINUTE <= served <= 1.05 * 2 * PER_MINUTE + 3
    assert world.gateway.cells["c0"].spilled > 100


def test_what_a_key_runs_at_once_counts_in_both_of_its_cells() -> None:
    world = World()
    caller = caller_of("c1", KeyLimits(concurrency=16))
    streams = [world.ask(caller, tokens=80) for _ in range(16)]

    def more() -> set[str]:
        """What becomes of requests beyond the limit."""
        world.pass_time(1.0)
        asked = [world.ask(caller) for _ in range(4)]
        world.pass_time(1.0)
        return {"served" if one.error is None else one.error.code.value for one in asked}

    assert more() == {"rate_limited"}
    world.lose("c1")
    assert more() == {"rate_limited"}
    world.bring_back("c1")
    assert len(world.cells["c0"].streams) == 16
    assert more() == {"rate_limited"}
    world.pass_time(8.0)
    assert all(len(stream.token_ids) == 80 and stream.error is None for stream in streams)
    assert more() == {"served"}

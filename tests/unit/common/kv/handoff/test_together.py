"""Both ends under seeded faults: reordered, late, lost, damaged, cancelled at any moment.

A small world delivers control messages of one direction in order and everything else in any order,
loses connections, damages data and cancels. After it has come to rest: each side ended exactly
once, D placed only the right blocks, every receive that was posted was answered or its connection
lost, and P holds nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from common.kv.digest import Verdict
from common.kv.handoff.desk import Desk, Out, Peer
from common.kv.handoff.receiver import Receiver, Wanted
from common.kv.handoff.tally import Tally
from common.kv.handoff.words import (
    RECEIVE_TERMINAL,
    Action,
    Arrived,
    Cancel,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    PeerLost,
    Place,
    Post,
    Posted,
    ReceiveEvent,
    SendData,
    SendVoid,
    Stage,
    Start,
    Tell,
    Tick,
)
from common.kv.messages import KvAbort, KvCredit, KvReady, KvReleased
from tests.unit.common.kv.handoff.helpers import SHAPE, ticket

KEY = ("r", 0)
BLOCKS = 11


@dataclass
class World:
    rng: random.Random
    faults: float
    now: float = 0.0
    link: int = 0
    next_transfer: int = 100
    to_p: list[object] = field(default_factory=list)
    to_d: list[object] = field(default_factory=list)
    loose: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    posted: set[tuple[int, int]] = field(default_factory=set)
    placed: list[int] = field(default_factory=list)
    p_ends: list[str] = field(default_factory=list)
    d_ends: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.desk = Desk(SHAPE, buffer_bytes=400, lease_ms=3000, tally=Tally())
        first = self.rng.randrange(0, 4)
        wanted = Wanted(first, BLOCKS - first, self.rng.randint(1, 4), 3, 2.0, 3)
        self.wanted = wanted
        self.receiver = Receiver(ticket(lease_ms=3000), wanted, SHAPE)
        self.computed = 0
        self.offered = False

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # ---------------------------------------------------------- both shells

    def feed_d(self, event: ReceiveEvent) -> None:
        for action in self.receiver.handle(event, self.now):
            self.do_d(action)
        self.receiver.check_invariants()

    def do_d(self, action: Action) -> None:
        match action:
            case Connect():
                self.loose.append(("connect", (0, 0)))
            case Post(_, plan, first, upto):
                self.posted |= {(plan.transfer, index) for index in range(first, upto)}
                self.feed_d(Posted(plan.transfer, upto))
            case Tell(peer, message) if peer == self.link:
                self.to_p.append(message)
            case Place(_, _, first_block, blocks):
                self.placed += range(first_block, first_block + blocks)
            case Ended(error):
                self.d_ends.append(error)

    def do_p(self, outs: list[Out] | None) -> None:
        for out in outs or []:
            match out.action:
                case Stage(transfer, index):
                    self.loose.append(("stage", (transfer, index)))
                case SendData(peer, plan, index) if peer == self.link:
                    message = plan.message(index)
                    assert message.first_block + message.blocks <= self.computed
                    self.loose.append(("data", (plan.transfer, index)))
                case SendVoid(peer, transfer, index) if peer == self.link:
                    self.loose.append(("void", (transfer, index)))
                case Tell(peer, message) if peer == self.link:
                    self.to_d.append(message)
                case Ended(error):
                    self.p_ends.append(error)
        self.desk.check_invariants()

    # ---------------------------------------------------------- what may happen

    def step(self) -> None:
        self.now += self.rng.random() * 0.02
        if self.chance(0.5) and self.to_p:
            self.hear_p(self.to_p.pop(0))
        elif self.chance(0.3) and self.to_d:
            self.feed_d(self.to_d.pop(0))  # type: ignore[arg-type]
        elif self.chance(0.7) and self.loose:
            self.happen(*self.loose.pop(self.rng.randrange(len(self.loose))))
        elif self.chance(0.3):
            self.compute()
        elif self.chance(self.faults):
            self.fault()
        self.do_p(self.desk.tick(self.now))
        if self.receiver.wake_at <= self.now:
            self.feed_d(Tick())

    def compute(self) -> None:
        if not self.offered:
            self.offered = True
            outs = self.desk.offer(ticket(lease_ms=3000), BLOCKS, self.now)
            if outs is None:
                self.p_ends.append("refused")
            self.do_p(outs)
            return
        shrink = self.chance(self.faults)
        self.computed = 0 if shrink else min(BLOCKS, self.computed + self.rng.randint(1, 5))
        self.do_p(self.desk.computed(KEY, self.computed))

    def hear_p(self, message: object) -> None:
        peer = Peer(self.link, "d0", "inc-d")
        match message:
            case KvReady():
                self.do_p(self.desk.ready(peer, message, self.now))
            case KvCredit():
                self.do_p(self.desk.credit(peer, message))
            case KvReleased():
                self.do_p(self.desk.released(message))
            case KvAbort():
                self.do_p(self.desk.aborted(peer, message))

    def happen(self, kind: str, what: tuple[int, int]) -> None:
        if kind == "connect":
            if self.chance(self.faults):
                self.feed_d(ConnectFailed("refused"))
            else:
                self.link = self.link or self.rng.randrange(1, 1 << 30)
                self.next_transfer += 1
                self.feed_d(Connected(self.link, self.next_transfer))
            return
        transfer, index = what
        if kind == "stage":
            self.do_p(self.desk.staged(KEY, transfer, index))
            return
        assert (transfer, index) in self.posted, "sent without a grant, or twice"
        self.posted.remove((transfer, index))
        verdict = Verdict.VOID if kind == "void" else Verdict.OK
        if verdict is Verdict.OK and self.chance(self.faults):
            verdict = Verdict.CORRUPT
        self.feed_d(Arrived(transfer, index, verdict))

    def fault(self) -> None:
        kind = self.rng.choice(["drop", "drop", "cancel_d", "cancel_p"])
        if kind == "drop" and self.link:
            lost, self.link = self.link, 0
            self.to_p, self.to_d, self.posted = [], [], set()
            self.loose = [entry for entry in self.loose if entry[0] in ("stage", "connect")]
            self.do_p(self.desk.peer_lost(lost, self.now))
            self.feed_d(PeerLost(lost))
        elif kind == "cancel_d":
            self.feed_d(Cancel("client gone"))
        elif kind == "cancel_p":
            self.do_p(self.desk.release(KEY, "client gone"))

    def settle(self) -> None:
        self.faults = 0.0
        for _ in range(3000):
            self.step()
            if self.at_rest():
                return
        raise AssertionError("did not come to rest")

    def at_rest(self) -> bool:
        quiet = not (self.to_p or self.to_d or self.loose)
        over = self.receiver.state in RECEIVE_TERMINAL
        return quiet and over and self.offered and not len(self.desk)


@pytest.mark.parametrize("faults", [0.0, 0.02, 0.2])
def test_it_always_ends_well(faults: float) -> None:
    outcomes: dict[str, int] = {}
    for seed in range(400):
        world = World(random.Random(seed), faults)
        world.feed_d(Start())
        for _ in range(world.rng.randrange(200)):
            world.step()
        world.settle()
        assert len(world.d_ends) == 1, seed
        assert len(world.p_ends) == 1, seed
        assert not world.posted, (seed, "receives left behind")
        wanted = list(range(world.wanted.first_block, BLOCKS))
        if world.d_ends == [""]:
            assert sorted(set(world.placed)) == wanted, seed
        assert set(world.placed) <= set(wanted), seed
        outcomes[world.d_ends[0]] = outcomes.get(world.d_ends[0], 0) + 1
    if faults == 0.0:
        assert outcomes == {"": 400}
    else:
        assert outcomes.get("", 0) > 50
        assert len(outcomes) > 1

"""Both ends under seeded faults: reordered, repeated, late, lost, damaged, cancelled at any moment.

A small world delivers data in any order, loses connections, damages data, preempts P and cancels.
`unruly` also repeats and reorders control messages, which UCX never does. P's blocks belong to the
request from its offer to its end, D's from its start to its end; both are reused at once after
that, so whoever touches them later is caught in the act. After it has come to rest: each side ended
exactly once, D wrote only the right blocks, what it says to have is right, every posted receive was
answered or its connection lost, and P holds nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from common.kv.checksum.header import CORRUPT, NOT_YET, Arrival, Verdict
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import (
    RECEIVE_TERMINAL,
    Action,
    Arrived,
    Cancel,
    Computed,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    ForSender,
    FromPeer,
    LayersComputed,
    Offer,
    PeerLost,
    Post,
    Posted,
    ReceiveEvent,
    Release,
    SendControl,
    SendData,
    SendVoid,
    Stage,
    Staged,
    Start,
    Tick,
    TicketEvent,
)
from common.kv.handoff.receiver import FetchSpec, Receiver
from common.kv.handoff.ticket_table import TicketTable
from common.kv.messages import ConnectedPeer
from common.kv.plan import Chunking, KvShape, TransferChunking, TransferPlan
from tests.rigs.messages import ticket

KEY = ("r", 0)
BLOCKS = 11
LAYERS = 4
SHAPE = KvShape(layers=LAYERS, block_bytes=100)


@dataclass
class World:
    rng: random.Random
    faults: float
    unruly: bool = False
    now: float = 0.0
    link: int = 0
    next_transfer: int = 100
    to_p: list[object] = field(default_factory=list)
    to_d: list[object] = field(default_factory=list)
    loose: list[tuple[str, tuple[int, int, int]]] = field(default_factory=list)
    posted: set[tuple[int, int]] = field(default_factory=set)
    placed: set[tuple[int, int]] = field(default_factory=set)
    """Pages as they should be; a damaged message spoils those it is written to."""
    plans: dict[int, TransferPlan] = field(default_factory=dict)
    p_ends: list[str] = field(default_factory=list)
    d_ends: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = TicketTable(
            lambda _: SHAPE, buffer_bytes=400, lease_ms=6000, counters=HandoffCounters()
        )
        first, groups = self.rng.randrange(0, 4), self.rng.choice([1, 2, 3, 4])
        wire, loan = (Chunking(self.rng.randint(1, 4), self.rng.randint(2, 4)) for _ in range(2))
        wanted = FetchSpec(
            first, BLOCKS - first, SHAPE, TransferChunking(wire, loan), 4.0, 3, layer_groups=groups
        )
        self.wanted = wanted
        self.receiver = Receiver(ticket(lease_ms=6000), wanted, random.Random(1).random)
        self.computed = 0
        self.layers_computed = (0, 0)
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
                self.loose.append(("connect", (0, 0, 0)))
            case Post(_, plan, first, upto, due):
                self.plans[plan.transfer] = plan
                upto = self.rng.randint(first + due, upto)
                self.posted |= {(plan.transfer, slot) for slot in range(first, upto)}
                self.feed_d(Posted(plan.transfer, upto))
            case SendControl(peer, message) if peer == self.link:
                self.to_p.append(message)
            case Ended(error):
                self.d_ends.append(error)

    def feed_p(self, event: TicketEvent) -> None:
        for ticket_action in self.table.handle(event, self.now):
            match ticket_action.action:
                case Stage(transfer, index):
                    self.loose.append(("stage", (transfer, index, 0)))
                case SendData(peer, plan, index, slot):
                    what = plan.message(index)
                    assert not self.p_ends, "P read blocks that were no longer the request's"
                    ahead_blocks, ahead_layers = self.layers_computed
                    layers_computed = (
                        what.end_block <= ahead_blocks and what.end_layer <= ahead_layers
                    )
                    assert what.end_block <= self.computed or layers_computed, (
                        "read before it was computed"
                    )
                    if peer == self.link:
                        self.loose.append(("data", (plan.transfer, slot, index)))
                case SendVoid(peer, transfer, slot) if peer == self.link:
                    self.loose.append(("void", (transfer, slot, 0)))
                case SendControl(peer, message) if peer == self.link:
                    self.to_d.append(message)
                case Ended(error):
                    self.p_ends.append(error)
        self.table.check_invariants()

    # ---------------------------------------------------------- what may happen

    def step(self) -> None:
        self.now += self.rng.random() * 0.02
        if self.chance(0.5) and self.to_p:
            peer = ConnectedPeer(self.link, "d0", "inc-d0")
            self.feed_p(FromPeer(peer, self.next_message(self.to_p)))  # type: ignore[arg-type]
        elif self.chance(0.3) and self.to_d:
            self.feed_d(self.next_message(self.to_d))  # type: ignore[arg-type]
        elif self.chance(0.7) and self.loose:
            self.happen(*self.loose.pop(self.rng.randrange(len(self.loose))))
        elif self.chance(0.3):
            self.compute()
        elif self.chance(self.faults):
            self.fault()
        self.feed_p(Tick())
        if self.receiver.wake_at <= self.now:
            self.feed_d(Tick())

    def next_message(self, messages: list[object]) -> object:
        at = self.rng.randrange(len(messages)) if self.unruly and self.chance(0.3) else 0
        return messages[at] if self.unruly and self.chance(0.2) else messages.pop(at)

    def compute(self) -> None:
        if not self.offered:
            self.offered = True
            self.feed_p(Offer(ticket(lease_ms=6000), BLOCKS))
            return
        if self.chance(self.faults):
            self.computed, self.layers_computed = 0, (0, 0)
        elif self.layers_computed == (0, 0) or self.layers_computed[1] < LAYERS - 1:
            if not self.layers_computed[0]:
                blocks = min(BLOCKS, self.computed + self.rng.randint(1, 5))
                self.layers_computed = (blocks, 0)
            self.layers_computed = (self.layers_computed[0], self.layers_computed[1] + 1)
            self.feed_p(ForSender(KEY, LayersComputed(*self.layers_computed)))
            return
        else:
            self.computed, self.layers_computed = self.layers_computed[0], (0, 0)
        self.feed_p(ForSender(KEY, Computed(self.computed)))

    def happen(self, kind: str, what: tuple[int, int, int]) -> None:
        if kind == "connect":
            if self.chance(self.faults):
                self.feed_d(ConnectFailed("refused"))
            else:
                self.link = self.link or self.rng.randrange(1, 1 << 30)
                self.next_transfer += 1
                loan = self.chance(0.5)
                self.feed_d(Connected(self.link, self.next_transfer, loan))
            return
        transfer, slot, index = what
        if kind == "stage":
            self.feed_p(ForSender(KEY, Staged(transfer, slot)))
            return
        assert (transfer, slot) in self.posted, "sent without a grant, or twice"
        self.posted.remove((transfer, slot))
        if kind == "void":
            arrival = Arrival(Verdict.VOID)
        elif self.chance(self.faults):
            arrival = CORRUPT
        else:
            arrival = Arrival(Verdict.OK, index, NOT_YET)
        if kind == "data" and self.receiver.lacks(transfer, index):
            self.write(transfer, index, arrival)
        self.feed_d(Arrived(transfer, arrival))

    def write(self, transfer: int, index: int, arrival: Arrival) -> None:
        assert not self.d_ends, "D wrote to blocks that were no longer its own"
        what = self.plans[transfer].message(index)
        layers = range(what.first_layer, what.end_layer)
        pages = {(b, layer) for b in range(what.first_block, what.end_block) for layer in layers}
        if arrival.verdict is Verdict.OK:
            self.placed |= pages
        else:
            self.placed -= pages

    def fault(self) -> None:
        kind = self.rng.choice(["drop", "drop", "cancel_d", "cancel_p"])
        if kind == "drop" and self.link:
            self.drop()
        elif kind == "cancel_d":
            self.feed_d(Cancel("client gone"))
        elif kind == "cancel_p":
            self.feed_p(Release(KEY, "client gone"))

    def drop(self) -> None:
        lost, self.link = self.link, 0
        self.to_p, self.to_d, self.posted = [], [], set()
        self.loose = [entry for entry in self.loose if entry[0] in ("stage", "connect")]
        self.feed_p(PeerLost(lost))
        self.feed_d(PeerLost(lost))

    def settle(self) -> None:
        """An unruly link may lose a credit; the slots it granted are given up with the link."""
        self.faults = 0.0
        for _ in range(4000):
            self.step()
            if self.at_rest():
                if self.unruly and self.posted:
                    self.drop()
                return
        raise AssertionError("did not come to rest")

    def at_rest(self) -> bool:
        quiet = not (self.to_p or self.to_d or self.loose)
        over = self.receiver.state in RECEIVE_TERMINAL
        return quiet and over and self.offered and not len(self.table)


@pytest.mark.parametrize("unruly", [False, True])
@pytest.mark.parametrize("faults", [0.0, 0.02, 0.2])
def test_it_always_ends_well(faults: float, unruly: bool) -> None:
    outcomes: dict[str, int] = {}
    kept_of_failed = 0
    for seed in range(400):
        world = World(random.Random(seed), faults, unruly)
        world.feed_d(Start())
        for _ in range(world.rng.randrange(200)):
            world.step()
        world.settle()
        assert len(world.d_ends) == 1, seed
        assert len(world.p_ends) == 1, seed
        assert not world.posted, (seed, "receives left behind")
        blocks, report = range(world.wanted.first_block, BLOCKS), world.receiver.report()
        wanted = {(block, layer) for block in blocks for layer in range(LAYERS)}
        if world.d_ends == [""]:
            assert world.placed == wanted, seed
        assert world.placed <= wanted, seed
        kept = range(world.wanted.first_block, world.wanted.first_block + report.blocks)
        assert {(b, layer) for b in kept for layer in range(LAYERS)} <= world.placed, seed
        kept_of_failed += bool(world.d_ends != [""] and report.blocks)
        outcomes[world.d_ends[0]] = outcomes.get(world.d_ends[0], 0) + 1
    if faults == 0.0 and not unruly:
        assert outcomes == {"": 400}
    else:
        assert outcomes.get("", 0) > 20
        assert faults == 0.0 or (len(outcomes) > 1 and kept_of_failed)

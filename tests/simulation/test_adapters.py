"""Sixteen LoRA adapters, asked for by Zipf's law, over decode workers that keep four each in
memory: the policy `cost` sends each request where its adapter is, so that the workers divide them.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter, OrderedDict
from functools import cache

from common.messages import AdapterStatus, Beat, Load
from tests.unit.services.router.rig import Rig

ADAPTERS = [f"a{nth}@{nth}" for nth in range(16)]
WORKERS, IN_MEMORY = 4, 4
REQUESTS, PER_SECOND = 800, 8.0
LOAD_S, SERVICE_S, BEAT_S = 0.2, 0.3, 0.5


class Memory:
    """Which adapters one worker has in memory, as `common.engine.adapters` decides it."""

    def __init__(self) -> None:
        self.resident = OrderedDict.fromkeys(ADAPTERS[:IN_MEMORY])
        self.users: Counter[str] = Counter()

    def use(self, adapter: str) -> bool:
        """Whether it was there."""
        found = adapter in self.resident
        self.resident[adapter] = None
        self.resident.move_to_end(adapter)
        self.users[adapter] += 1
        for other in list(self.resident):
            if len(self.resident) > IN_MEMORY and not self.users[other]:
                del self.resident[other]
        return found

    def beat(self) -> Beat:
        held = tuple(
            AdapterStatus(id=one, path="/a", resident=one in self.resident, load_ms=LOAD_S * 1000)
            for one in ADAPTERS
        )
        return Beat(load=Load(), adapters=held)


@cache
def found_in_memory(policy: str) -> float:
    """The share of requests that did."""
    rig = Rig(policy=policy, mode="replicated")
    rig.gateway()
    memories = {rig.decode(f"d{nth}"): Memory() for nth in range(WORKERS)}
    dice, serial = random.Random(5), itertools.count()
    weights = [1 / (nth + 1) for nth in range(len(ADAPTERS))]
    events: list[tuple[float, int, str, str]] = []

    def at(instant: float, kind: str, what: str) -> None:
        heapq.heappush(events, (instant, next(serial), kind, what))

    arrives = rig.now
    for nth in range(REQUESTS):
        arrives += dice.expovariate(PER_SECOND)
        at(arrives, "ask", f"r{nth}")
    for nth in range(int((arrives - rig.now) / BEAT_S)):
        for peer in memories:
            at(rig.now + nth * BEAT_S, "beat", peer)
    adapters = {f"r{nth}": dice.choices(ADAPTERS, weights)[0] for nth in range(REQUESTS)}
    hits = 0
    while events:
        rig.now, _, kind, what = heapq.heappop(events)
        if kind == "beat":
            rig.receive(what, memories[what].beat())
            continue
        if kind == "ask":
            rig.submit(what, adapter=adapters[what])
            worker = rig.known(what).decode
            found = memories[worker].use(adapters[what])
            hits += found
            at(rig.now + SERVICE_S + (0.0 if found else LOAD_S), "end", what)
            continue
        worker = rig.known(what).decode
        memories[worker].users[adapters[what]] -= 1
        rig.started(what, peer=worker, kv=None)
        rig.ended(what, peer=worker)
    return hits / REQUESTS


def test_workers_divide_the_adapters_among_them() -> None:
    print(f"found in memory: {found_in_memory('cost'):.1%}")
    assert found_in_memory("cost") >= 0.9


def test_by_load_alone_each_worker_would_need_them_all() -> None:
    print(f"found in memory: {found_in_memory('least_loaded'):.1%}")
    assert found_in_memory("least_loaded") < 0.6

"""Two KV services in this process whose KV is on late cards, and engines that only have streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import torch

from common.config import KvConfig, StoreConfig
from common.config.kv import KvPath
from common.kv.device.memory import CopyQueues, DeviceMemory
from common.kv.device.pages import CardPages
from common.kv.layout import Geometry
from common.kv.messages import KvDone
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.kv.store.results import StoreSize
from common.messages import Ticket
from tests.component.common.kv.service_peer import CONFIG, drained, linked, wait_for
from tests.component.common.kv.stored import STORE_SLOTS
from tests.rigs import messages
from tests.unit.common.kv.device.late_card import LateCard, LateMark

LAYERS, BLOCKS, PAGE = 4, 40, 4096
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
PATIENT_S = 30.0
"""A busy machine starves this process, which has both services, for seconds."""
KEY = ("r", 0)


class Worker:
    """A service, the memory on its card, and its engine's stream."""

    def __init__(self, name: str, config: KvConfig, card: LateCard) -> None:
        random = np.random.default_rng(ord(name[0]))
        self.base = random.integers(0, 256, GEOMETRY.end, dtype=np.uint8)
        self.card = card
        self.memory = memory = DeviceMemory(
            CopyQueues(card, torch.from_numpy(self.base)), CardPages(GEOMETRY)
        )
        identity = WorkerIdentity(name, f"inc-{name}", "f")
        size = StoreSize(STORE_SLOTS, 300.0) if config.store.ram_mib else None
        self.service = KvService(identity, config, memory, store=size)
        self.address = self.service.start()

    def blocks(self, ids: list[int]) -> np.ndarray:
        """A copy, `[layer][block][byte]`."""
        return self.base.reshape(LAYERS, BLOCKS, PAGE)[:, ids].copy()

    def write_later(self, ids: list[int], seed: int) -> tuple[LateMark, np.ndarray]:
        """Gives the engine's stream a write to these blocks. Returns a mark after it, and what will
        be there."""
        random = np.random.default_rng(seed)
        due = random.integers(0, 256, (LAYERS, len(ids), PAGE), dtype=np.uint8)

        def write() -> None:
            self.base.reshape(LAYERS, BLOCKS, PAGE)[:, ids] = due

        self.card.engine.put(write)
        return self.card.mark(), due

    def end(self) -> KvDone:
        (end,) = drained(self.service, PATIENT_S)
        return end

    def copying(self) -> bool:
        """Whether copies run out of the blocks of an open handoff, or into them."""
        kv_thread = self.service._kv_thread
        assert kv_thread is not None
        prompts = list(kv_thread.send_side._prompts.values())
        fetches = list(kv_thread.receive_side._fetches.values())
        return any(one.copies for one in prompts) or any(one.copying for one in fetches)

    def copies_running(self) -> int:
        return sum(len(way._running) for way in (self.memory.queues.out, self.memory.queues.into))

    def lanes(self) -> tuple[str, ...]:
        """To P."""
        kv_thread = self.service._kv_thread
        assert kv_thread is not None
        return kv_thread.receive_side.connections.lanes()["p0"]

    def card_buffers(self) -> int:
        """How many messages went from card to card at once."""
        kv_thread = self.service._kv_thread
        assert kv_thread is not None
        sides = kv_thread.send_side, kv_thread.receive_side
        return sum(side._pools.card._made for side in sides if side._pools.card is not None)


class Pair:
    """P and D."""

    def __init__(
        self,
        path: KvPath,
        *,
        transports: str,
        layer_groups: int,
        cards: list[LateCard],
        store_mib: int,
    ) -> None:
        """`transports`: empty: as `CONFIG` has them. `cards`: P's and D's. `store_mib`: of the
        store of each; 0: it has none."""
        config = msgspec.structs.replace(
            CONFIG,
            load_timeout_ms=PATIENT_S * 1000,
            transports=transports or CONFIG.transports,
            message_bytes=3 * LAYERS * PAGE,
            device_staging_mib=8,
            path=path,
            layer_groups=layer_groups,
            store=StoreConfig(ram_mib=store_mib),
        )
        self.p = Worker("p0", config, cards[0])
        self.d = Worker("d0", config, cards[1])
        wait_for(lambda: linked(self.d.service, self.p.address), PATIENT_S)

    def ticket(self) -> Ticket:
        secret = os.urandom(16)
        return messages.ticket("r", secret=secret, kv_address=self.p.address, lease_ms=60_000.0)


@contextmanager
def pair(
    path: KvPath,
    *,
    transports: str = "",
    layer_groups: int = 1,
    card: LateCard | None = None,
    d_card: LateCard | None = None,
    store_mib: int = 0,
) -> Iterator[Pair]:
    """`card`: P's. `store_mib`: as in `Pair`."""
    cards = [card or LateCard(), d_card or LateCard()]
    rest = {"layer_groups": layer_groups, "store_mib": store_mib}
    made = Pair(path, transports=transports, cards=cards, **rest)
    try:
        yield made
    finally:
        for worker in (made.p, made.d):
            worker.card.let_go()
            worker.service.stop()

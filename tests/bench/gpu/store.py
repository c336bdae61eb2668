"""The store over KV on the card: saved while the card is still at it, loaded to blocks that it
still clears, taken back while it is copied; and how fast."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from common.kv.handoff.counters import HandoffCounters
from common.kv.layout import Geometry, KvMemory, Mark
from common.kv.store.arena import Arena
from common.kv.store.results import StoreResults
from common.kv.store.side import StoreSide
from common.kv.store.table import BlockCopy, BlockName
from tests.bench.gpu.kernels import D2H, H2D
from tests.bench.gpu.memory import (
    KIB,
    MIB,
    FilledMemory,
    LaidOut,
    blocks_first,
    layers_first,
    some_blocks,
)
from tests.bench.gpu.pair import CUDA, Tools
from tests.bench.gpu.report import Check, Outcome, compared, value_of

COUNT = 24
"""Blocks that are saved and loaded; three times what is copied at once."""
WITHDRAW_AFTER_S = (0.0, 0.0005, 0.002, 0.01)
WAIT_S = 20.0
TIMED_BYTES, ROUNDS = 256 * MIB, 4
GIGA = 1e9


def geometries(device: str) -> dict[str, Geometry]:
    """By name; on the CPU fewer layers."""
    layers = 24 if device == CUDA else 3
    return {
        "pages of 16 KiB, layers first": layers_first(layers, 96, 16 * KIB),
        "pages of 64 KiB, blocks first, gaps": blocks_first(layers, 96, 64 * KIB, gap=256),
    }


class Stored:
    """A store on a loop of its own, and the memory of its engine."""

    def __init__(
        self, memory: FilledMemory, seen: KvMemory, card: object, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`seen`: the memory as the KV layer sees it. `card`: its `CudaCard`, or None."""
        self.memory, self._seen, self._card = memory, seen, card
        self._ended = threading.Semaphore(0)
        self.arena = Arena(seen, memory.geometry.blocks)
        self.arena.prepare()
        self.side = StoreSide(self.arena, HandoffCounters(), loop, self._ended.release)

    def mark(self) -> Mark | None:
        """After what was launched so far."""
        mark: Mark | None = self._card.mark() if self._card is not None else None  # type: ignore[attr-defined]
        return mark

    def results(self) -> StoreResults:
        """All that ends, once nothing is left to do."""
        total = StoreResults()
        while self.side.busy:
            if not self._ended.acquire(timeout=WAIT_S):
                raise TimeoutError(f"the store has not ended within {WAIT_S:.0f} s")
            total = total.joined(self.side.drain())
        return total

    def save(self, blocks: Sequence[int]) -> None:
        self.side.save(_copies(blocks), self.mark())

    def load(self, blocks: Sequence[int]) -> StoreResults:
        self.side.load("r", _copies(blocks), self.mark())
        return self.results()

    def close(self) -> None:
        self.side.close()
        if self._seen.device is not None:
            self._seen.device.close()


def store(tools: Tools, outcome: Outcome) -> None:
    for name, geometry in geometries(tools.device).items():
        with _open(tools, geometry) as stored:
            found = [_whole(stored, name), _withdrawn(stored, name)]
        outcome.checks += found
        for one in found:
            print(f"  {one.what}: {'equal' if one.passed else f'WRONG: {one.detail}'}", flush=True)
    page = 64 * KIB
    blocks = TIMED_BYTES // (16 * page)
    with _open(tools, layers_first(16, 2 * blocks, page)) as stored:
        _timed(tools, outcome, stored, blocks)


@contextmanager
def _open(tools: Tools, geometry: Geometry) -> Iterator[Stored]:
    """Its loop runs on another thread, as in an engine."""
    memory = FilledMemory(LaidOut(geometry), tools.device)
    card = None
    if tools.device == CUDA:
        import torch

        from common.kv.device.card import CudaCard

        card = CudaCard(torch.device(tools.device, torch.cuda.current_device()))
    seen, _ = memory.kv_memory(card)
    if seen.device is not None:
        seen.device.reserve(geometry.block_bytes)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    if seen.device is not None:
        loop.call_soon_threadsafe(seen.device.enter)
    stored = Stored(memory, seen, card, loop)
    try:
        yield stored
    finally:
        stored.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)


def _whole(stored: Stored, name: str) -> Check:
    """Saved before the card has computed it, loaded before the card has cleared the memory."""
    geometry, memory = stored.memory.geometry, stored.memory
    source, target = some_blocks(geometry, COUNT, 1), some_blocks(geometry, COUNT, 2)
    memory.clear()
    for _ in memory.fill_late(source, 7, 1):
        stored.save(source)
    stored.results()
    memory.clear()
    ended = stored.load(target)
    wrong = memory.wrong_bytes(target, 7)
    faults = [f"{wrong} bytes differ"] if wrong else []
    faults += [f"{len(ended.damaged)} digests"] if ended.damaged else []
    return Check(f"store, {name}", not faults, ", ".join(faults))


def _withdrawn(stored: Stored, name: str) -> Check:
    """Blocks are taken back while they are saved, and spoiled; what was saved of them is right."""
    geometry, memory = stored.memory.geometry, stored.memory
    wrong, saved = dict[float, int](), 0
    for seed, wait_s in enumerate(WITHDRAW_AFTER_S, 11):
        source, target = some_blocks(geometry, COUNT, seed), some_blocks(geometry, COUNT, -seed)
        for _ in memory.fill_late(source, seed, 1):
            stored.save(source)
        time.sleep(wait_s)
        stored.side.withdraw(source)
        memory.spoil(source)
        written = sorted(stored.results().written)
        saved += len(written)
        if not written:
            continue
        # Slots are numbered as the blocks are, so a part of them is a part of the content.
        memory.clear()
        stored.side.load("r", [_copies(target)[slot] for slot in written], stored.mark())
        stored.results()
        wrong[wait_s] = memory.wrong_bytes(target, seed, written)
    found = {f"{wait_s * 1000:g} ms": count for wait_s, count in wrong.items() if count}
    detail = f"bytes that differ, by when it was: {found}" if found else ""
    what = f"store, {name}, withdrawn ({saved} blocks had begun)"
    return Check(what, not found, detail)


def _timed(tools: Tools, outcome: Outcome, stored: Stored, blocks: int) -> None:
    source, target = list(range(blocks)), list(range(blocks, 2 * blocks))
    saving, loading = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        stored.save(source)
        stored.results()
        saving.append(time.perf_counter() - began)
        began = time.perf_counter()
        stored.load(target)
        loading.append(time.perf_counter() - began)
    for what, seconds, against in (("save", saving, D2H), ("load", loading, H2D)):
        value = TIMED_BYTES / min(seconds) / GIGA
        base = value_of(tools.earlier, "copies", against)
        row = compared("store", what, value, "GB/s", against=against, base=base)
        outcome.rows.append(row)
        print(f"  {what} {value:.1f} GB/s", flush=True)


def _copies(blocks: Sequence[int]) -> list[BlockCopy]:
    """Each to or from the slot of its number in the list."""
    return [
        BlockCopy(slot, block, BlockName(0, slot.to_bytes(32, "big")))
        for slot, block in enumerate(blocks)
    ]

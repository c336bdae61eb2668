"""Handoffs between unlike layouts, converted to the canonical form and out of it, against those of
equal layouts between the same two processes: one ratio of GB/s for each pair of block sizes.

P is a process of its own, with one service of each layout; this process is D, with one of each. A
round moves the same tokens by each path, in turn, from D's asking on. Medians over the rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection

from common.config import KvConfig
from common.kv.canonical import CanonicalMemory, HeadMajorPage
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import KvForm
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from tests.bench.kv_paths import on_lines
from tests.rigs.messages import ticket

LAYERS, HEADS, ITEMS, TOKENS = 8, 8, 64, 4096
SIZES = (16, 32, 128)
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
ROUNDS = 9
GIGA = 1e9


def main() -> None:
    context = multiprocessing.get_context("spawn")
    print(f"{os.getloadavg()[0]:.1f} load on {os.cpu_count()} cores")
    print("element    P block  D block  equal GB/s  converted GB/s  ratio")
    for element, item_bytes in ITEM_BYTES.items():
        ours, theirs = context.Pipe()
        child = context.Process(target=serve, args=(theirs, item_bytes), daemon=True)
        child.start()
        addresses: dict[int, str] = ours.recv()
        decode = {tokens: started("d0", tokens, item_bytes)[0] for tokens in SIZES}
        for p_tokens in SIZES:
            for d_tokens in SIZES:
                if p_tokens == d_tokens:
                    continue
                paths = {True: decode[d_tokens], False: decode[p_tokens]}
                rates: dict[bool, list[float]] = {True: [], False: []}
                for at in range(ROUNDS + 1):
                    for canonical, service in paths.items():
                        rate = moved(ours, service, addresses[p_tokens], p_tokens, canonical)
                        rates[canonical] += [rate] if at else []
                converted, equal = (statistics.median(rates[which]) for which in (True, False))
                print(
                    f"{element:<10} {p_tokens:>7}  {d_tokens:>7}  {equal:>10.2f}  "
                    f"{converted:>14.2f}  {converted / equal:>5.2f}"
                )
        for service in decode.values():
            service.stop()
        ours.send(None)
        child.join(5)


def started(name: str, tokens: int, item_bytes: int) -> tuple[KvService, str]:
    page = HeadMajorPage(HEADS, tokens, ITEMS, item_bytes)
    blocks, size = TOKENS // tokens, page.page_bytes
    geometry = Geometry(LAYERS, blocks, size, size * blocks, size)
    base = on_lines(geometry.end)
    base[:] = 1
    memory = HostMemory(base, geometry)
    form = KvForm("m")
    identity = WorkerIdentity(name, f"inc-{name}", f"of {tokens}", form=form)
    canonical = {"": CanonicalMemory(memory, page)}
    service = KvService(identity, KvConfig(), memory, canonical=canonical)
    return service, service.start()


def moved(
    pipe: Connection, service: KvService, address: str, tokens: int, canonical: bool
) -> float:
    """GB/s of a handoff of all tokens. `tokens`: of a block of P."""
    blocks = TOKENS // (16 if canonical else tokens)
    handed = ticket(
        os.urandom(8).hex(), 1, kv_address=address, lease_ms=30_000.0, canonical=canonical
    )
    pipe.send((tokens, handed, blocks))
    pipe.recv()
    start = time.perf_counter()
    service.fetch(handed, 0, list(range(blocks)))
    while not (ended := service.drain()):
        service.wait_end(1.0)
    seconds = time.perf_counter() - start
    if ended[0].error:
        raise RuntimeError(ended[0].message)
    return ended[0].report.payload_bytes / seconds / GIGA


def serve(pipe: Connection, item_bytes: int) -> None:
    """P: offers what it is asked to, computed already."""
    made = {tokens: started("p0", tokens, item_bytes) for tokens in SIZES}
    pipe.send({tokens: address for tokens, (_, address) in made.items()})
    while (asked := pipe.recv()) is not None:
        tokens, handed, blocks = asked
        service, _ = made[tokens]
        service.offer(handed, blocks)
        service.progress((handed.request_id, 1), list(range(blocks)), blocks)
        pipe.send("offered")
    for service, _ in made.values():
        service.stop()

"""KV handoff, blocks to blocks with digests, against raw UCXX and memcpy in the same run.

Two processes on this host: the child is P (or the raw sender), this one is D. Each size is moved
`ROUNDS` times; the best round counts, since noise only slows. CPU is of both processes together.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import psutil

from common.config import KvConfig
from common.kv.control import Identity
from common.kv.layout import Geometry, HostMemory
from common.kv.service import KvService
from common.kv.ucx import Link, Ucx
from common.messages import Ticket

LAYERS, PAGE, BLOCKS = 4, 131_072, 256
BLOCK_BYTES = LAYERS * PAGE
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
CONFIG = KvConfig()
SIZES = (2, 16, 128)
ROUNDS = 7
WINDOW = 4
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Best:
    seconds: float
    cpu_seconds: float


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_serve, args=(theirs,), daemon=True)
    child.start()
    kv_address, raw_port = ours.recv()
    peer = psutil.Process(child.pid)
    raw = Raw(raw_port, ours)
    base = np.zeros(GEOMETRY.end, np.uint8)
    service = KvService(Identity("d0", "i", "f"), CONFIG, HostMemory(base, GEOMETRY))
    service.start()
    print(" blocks    MiB     path    GB/s  CPU s/GB  of raw  of memcpy")
    for blocks in SIZES:
        size = blocks * BLOCK_BYTES
        copy = _best(peer, _memcpy(size))
        plain = _best(peer, raw.mover(size))
        ours_best = _best(peer, _handoff(service, ours, kv_address, blocks))
        for name, best in (("memcpy", copy), ("raw", plain), ("handoff", ours_best)):
            rate = size / best.seconds / GIGA
            print(
                f"{blocks:>7} {size >> 20:>6} {name:>8} {rate:7.2f} "
                f"{best.cpu_seconds / (size / GIGA):9.2f} {plain.seconds / best.seconds:7.0%} "
                f"{copy.seconds / best.seconds:10.0%}"
            )
    ours.send(("exit",))
    service.stop()
    child.join(5)


def _best(peer: psutil.Process, move: Callable[[], None]) -> Best:
    move()
    rounds = []
    for _ in range(ROUNDS):
        cpu, start = _cpu(peer), time.perf_counter()
        move()
        rounds.append(Best(time.perf_counter() - start, _cpu(peer) - cpu))
    return min(rounds, key=lambda best: best.seconds)


def _cpu(peer: psutil.Process) -> float:
    times = peer.cpu_times()
    return time.process_time() + float(times.user + times.system)


def _memcpy(size: int) -> Callable[[], None]:
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    return lambda: np.copyto(target, source)


def _handoff(service: KvService, pipe: Connection, address: str, blocks: int) -> Callable[[], None]:
    def move() -> None:
        ticket = Ticket(
            secret=os.urandom(16),
            request_id=os.urandom(8).hex(),
            attempt=1,
            fingerprint="f",
            prefill="p0",
            prefill_incarnation="i",
            decode="d0",
            decode_incarnation="i",
            kv_address=address,
            lease_ms=30_000.0,
        )
        pipe.send(("offer", ticket, blocks))
        pipe.recv()
        service.fetch(ticket, 0, list(range(blocks)))
        while not (ended := service.drain()):
            service.wait_end(1.0)
        if ended[0].error:
            raise RuntimeError(ended[0].message)

    return move


class Raw:
    """One plain UCX connection to the child, kept over all rounds."""

    def __init__(self, port: int, pipe: Connection) -> None:
        self._pipe = pipe
        self._runner = asyncio.Runner()
        self._tag = 0
        self._buffers = [np.empty(CONFIG.message_bytes, np.uint8) for _ in range(WINDOW)]
        self._runner.run(self._connect(port))

    def mover(self, size: int) -> Callable[[], None]:
        return lambda: self._runner.run(self._receive(size))

    async def _connect(self, port: int) -> None:
        self._ucx = Ucx(CONFIG.transports, lambda _: None)
        self._ucx.start()
        self._link = self._ucx.connect("127.0.0.1", port)
        opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._link.open(opened.set_result)
        await opened

    async def _receive(self, size: int) -> None:
        """`size` bytes in messages of the handoff's size, `WINDOW` posted at a time."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        count = -(-size // CONFIG.message_bytes)
        first, self._tag = self._tag + 1, self._tag + count
        left = count

        def post(tag: int, buffer: np.ndarray) -> None:
            def arrived(error: str | None) -> None:
                nonlocal left
                left -= 1
                if error is not None:
                    done.set_exception(RuntimeError(error))
                elif tag + WINDOW < first + count:
                    post(tag + WINDOW, buffer)
                elif not left:
                    done.set_result(None)

            self._link.receive(buffer, tag, arrived)

        for at, buffer in enumerate(self._buffers[:count]):
            post(first + at, buffer)
        self._pipe.send(("raw", size, first))
        await done


def _serve(pipe: Connection) -> None:
    base = np.random.default_rng(1).integers(0, 256, GEOMETRY.end, dtype=np.uint8)
    service = KvService(Identity("p0", "i", "f"), CONFIG, HostMemory(base, GEOMETRY))
    address = service.start()
    asyncio.run(_serve_loop(pipe, service, address))
    service.stop()


async def _serve_loop(pipe: Connection, service: KvService, address: str) -> None:
    stopped = asyncio.Event()
    message = np.ones(CONFIG.message_bytes, np.uint8)
    links: list[Link] = []

    def accepted(link: Link) -> None:
        links.append(link)
        link.open(lambda _: None)

    def send_raw(size: int, tag: int) -> None:
        while size > 0:
            part = message[: min(size, CONFIG.message_bytes)]
            links[0].send(part, tag, lambda _: None)
            size, tag = size - part.nbytes, tag + 1

    def asked() -> None:
        verb, *args = pipe.recv()
        if verb == "exit":
            stopped.set()
        elif verb == "raw":
            send_raw(*args)
        else:
            ticket, blocks = args
            service.offer(ticket, blocks)
            service.progress((ticket.request_id, 1), list(range(blocks)), blocks)
            service.drain()
            pipe.send("ok")

    ucx = Ucx(CONFIG.transports, accepted)
    ucx.start()
    asyncio.get_running_loop().add_reader(pipe.fileno(), asked)
    pipe.send((address, ucx.listen(0)))
    await stopped.wait()
    ucx.close()

"""What UCX alone moves between the two processes, by the transport that the KV layer uses."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

from common.kv.transport.ucx import UcxLink, UcxWorker, data_tag
from tests.bench.gpu.handoffs import DEVICE_TRANSPORTS, HOST_TRANSPORTS
from tests.bench.gpu.memory import MIB
from tests.bench.gpu.pair import CPU, CUDA, Tools
from tests.bench.gpu.report import Outcome, Row, value_of

GIGA = 1e9
SIZES, WINDOWS = (4, 16, 64), (1, 2, 4, 8)
"""Of messages in MiB, and how many are in flight; a handoff has eight at most."""
ALONE_SIZES = (1, 256)
"""Sizes that are moved one message at a time only."""
ROUNDS = 3
MOVED_BYTES = {CUDA: 12 << 30, CPU: 1 << 30}
"""In a round, by where the memory is."""
MESSAGES = (8, 400)
"""In a round, at least and at most."""
GIVE_UP_S = 20.0


def _name(where: str, size: int, window: int) -> str:
    return f"{where} to {where}, {size} MiB, {window} in flight"


def device_to_device(size: int, window: int) -> str:
    """The name of this figure: messages of `size` MiB, so many in flight."""
    return _name("device", size, window)


def host_to_host(size: int, window: int) -> str:
    """The same between host memory."""
    return _name("host", size, window)


def raw_rate(rows: Iterable[Row], what: str) -> float | None:
    """GB/s, if this was measured."""
    return value_of(rows, "raw", what)


def _cases(device: str) -> Iterator[tuple[str, int, int]]:
    """Where the memory is, the size of a message in MiB, and messages in flight."""
    both = [(size, window) for size in SIZES for window in WINDOWS]
    both += [(size, 1) for size in ALONE_SIZES]
    for where in (CUDA, CPU) if device == CUDA else (CPU,):
        yield from ((where, size, window) for size, window in sorted(both))


def _count(where: str, size: int) -> int:
    return max(MESSAGES[0], min(MESSAGES[1], MOVED_BYTES[where] // (size * MIB)))


def transports(device: str) -> str:
    return DEVICE_TRANSPORTS if device == CUDA else HOST_TRANSPORTS


def _buffers(where: str, size: int, window: int) -> list[Any]:
    """Tensors on the card, or arrays."""
    import torch

    made = [torch.ones(size * MIB, dtype=torch.uint8, device=where) for _ in range(window)]
    if where == CUDA:
        torch.cuda.synchronize()
    return made if where == CUDA else [tensor.numpy() for tensor in made]


def _post(link: UcxLink, verb: str, buffer: Any, number: int) -> asyncio.Future[str | None]:
    """Ends with None, or with an error."""
    ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    post = link.send if verb == "send" else link.receive
    post(buffer, data_tag(number, 0, 0), ended.set_result)
    return ended


async def _move(link: UcxLink, verb: str, buffers: list[Any], first: int, count: int) -> None:
    """So many messages, numbered from `first` on, as many in flight as there are buffers."""
    window = len(buffers)
    ends: list[asyncio.Future[str | None]] = []
    for at in range(count):
        if at >= window:
            _check(await asyncio.wait_for(ends[at - window], GIVE_UP_S))
        ends.append(_post(link, verb, buffers[at % window], first + at))
    for ended in ends[-window:]:
        _check(await asyncio.wait_for(ended, GIVE_UP_S))


def _check(error: str | None) -> None:
    if error is not None:
        raise RuntimeError(f"UCX: {error}")


# ---------------------------------------------------------------- the near process


def receive(tools: Tools, outcome: Outcome) -> None:
    asyncio.run(_receive(tools, outcome))


async def _receive(tools: Tools, outcome: Outcome) -> None:
    linked: asyncio.Future[UcxLink] = asyncio.get_running_loop().create_future()

    def accepted(link: UcxLink) -> None:
        link.open(lambda error: None if linked.done() else linked.set_result(link))

    worker = UcxWorker(transports(tools.device), accepted)
    worker.start()
    tools.pipe.send(worker.listen(0))
    link = await asyncio.wait_for(linked, GIVE_UP_S)
    print(f"  UCX uses {', '.join(link.lanes())}", flush=True)
    for where, size, window in _cases(tools.device):
        value = await _measured(tools, link, where, size, window)
        what = (device_to_device if where == CUDA else host_to_host)(size, window)
        outcome.rows.append(Row("raw", what, value, "GB/s"))
        print(f"  {what}: {value:.1f} GB/s", flush=True)
    tools.pipe.send(None)
    worker.close()


async def _measured(tools: Tools, link: UcxLink, where: str, size: int, window: int) -> float:
    """GB/s: the median of the rounds, each after a short one that does not count."""
    buffers, rates, first = _buffers(where, size, window), [], 0
    for timed in range(-1, ROUNDS):
        count = _count(where, size) if timed >= 0 else 2 * window
        tools.pipe.send((where, size, window, first, count))
        start = time.perf_counter()
        await _move(link, "receive", buffers, first, count)
        rates.append(count * size * MIB / (time.perf_counter() - start) / GIGA)
        first += count
    return statistics.median(rates[1:])


# ---------------------------------------------------------------- the far process


def send(tools: Tools) -> None:
    asyncio.run(_send(tools))


async def _send(tools: Tools) -> None:
    worker = UcxWorker(transports(tools.device), lambda _: None)
    worker.start()
    link = worker.connect("127.0.0.1", tools.pipe.recv())
    opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    link.open(opened.set_result)
    _check(await asyncio.wait_for(opened, GIVE_UP_S))
    known: tuple[str, int, int] | None = None
    buffers: list[Any] = []
    while (asked := await _next(tools)) is not None:
        *case, first, count = asked
        if known != tuple(case):
            known = case[0], case[1], case[2]
            buffers = _buffers(*known)
        await _move(link, "send", buffers, first, count)
    worker.close()


async def _next(tools: Tools) -> Any:
    """What the other process asks next."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(tools.pipe.fileno(), readable.set)
    try:
        while not tools.pipe.poll(0):
            readable.clear()
            await readable.wait()
    finally:
        loop.remove_reader(tools.pipe.fileno())
    return tools.pipe.recv()

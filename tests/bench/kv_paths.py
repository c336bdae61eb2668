"""The ways to move KV that `kv` compares. Each `move` returns wall and CPU seconds of one move."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, Self

import numpy as np

from common.config import KvConfig
from common.kv.checksum import kernel
from common.kv.checksum.definition import LINE_BYTES, Bytes
from common.kv.checksum.kernel import Kernel
from common.kv.layout import Geometry, HostMemory
from common.kv.peers.channel import WorkerIdentity
from common.kv.plan import default_layer_groups, shape_of, transfer_chunking
from common.kv.service import KvService
from common.kv.staging.shared_segment import shares_memory
from common.kv.transport.ucx import UcxLink, UcxWorker, data_tag
from common.messages import Ticket
from tests.rigs.messages import ticket

LAYERS, PAGE, BLOCKS = 4, 65_536, 256
BLOCK_BYTES = LAYERS * PAGE
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
NANO = 1e-9
WINDOW_MIN = 4
"""Receives posted at a time by the raw path, or as many as the handoff has if that is more."""
START_S = 30.0
PEERS = "BATON_PEERS"
NIXL_MODE = "thread"
"""Its progress thread on, as vLLM's NixlConnector has it; `poll` is on TCP no faster."""
PAIRS = 25
IDLE_S = 1.0
Digests = Literal["on", "off"]


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    cpu_seconds: float


def settings(transports: str) -> KvConfig:
    return KvConfig(transports=transports)


def handoff_chunking(blocks: int, transports: str) -> tuple[int, int]:
    """Bytes of a message of a handoff of so many blocks, and how many it has in flight."""
    shape = shape_of(GEOMETRY)
    groups = default_layer_groups(shape, blocks)
    chunking = transfer_chunking(settings(transports).message_bytes, shape, groups, blocks)
    used = chunking.loan if shares_memory(transports) else chunking.wire
    return used.message_blocks * shape.group_layers(groups) * shape.page_bytes, used.window


def cpu_seconds(pid: int) -> float:
    """Of all threads alive."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total * NANO


def measured(move: Callable[[], object], others: Iterable[int]) -> Sample:
    """CPU: of this process and `others`."""
    pids = (os.getpid(), *others)
    cpu, start = sum(map(cpu_seconds, pids)), time.perf_counter()
    move()
    seconds = time.perf_counter() - start
    return Sample(seconds, sum(map(cpu_seconds, pids)) - cpu)


def idle_cores(pids: Iterable[int]) -> float:
    """Kept busy over `IDLE_S` by processes that are left alone."""
    sample = measured(lambda: time.sleep(IDLE_S), set(pids) - {os.getpid()})
    return sample.cpu_seconds / sample.seconds


def on_lines(size: int) -> Bytes:
    """Aligned as an engine's tensors are."""
    whole = np.zeros(size + LINE_BYTES, np.uint8)
    start = -whole.ctypes.data % LINE_BYTES
    return whole[start : start + size]


class Handoffs:
    """This process as D, the child as P."""

    def __init__(self, pipe: Connection, pid: int, address: str, transports: str) -> None:
        self._pipe = pipe
        self._pid = pid
        self._address = address
        self._switch = DigestSwitch()
        memory = HostMemory(on_lines(GEOMETRY.end), GEOMETRY)
        self._service = KvService(WorkerIdentity("d0", "inc-d0", "f"), settings(transports), memory)
        self._service.start()

    def move(self, blocks: int, *, mode: Digests = "on") -> Sample:
        """From D's asking on: the prompt was offered and computed before."""
        self._use(mode)
        ticket = self._offered(blocks)
        return measured(lambda: self._fetch(ticket, blocks), (self._pid,))

    def digest_seconds(self, blocks: int) -> float:
        """What digests add to the CPU of the copies of one handoff, both ends, inside it: the
        median over pairs of handoffs, with and without them."""
        added = [self._copying(blocks, "on") - self._copying(blocks, "off") for _ in range(PAIRS)]
        return max(0.0, statistics.median(added))

    def _copying(self, blocks: int, mode: Digests) -> float:
        self._use(mode)
        self._fetch(self._offered(blocks), blocks)
        self._pipe.send(("spent",))
        theirs: float = self._pipe.recv()
        return theirs + self._switch.spent

    def _use(self, mode: Digests) -> None:
        self._switch.use(mode)
        self._pipe.send(("digest", mode))

    def idle_cores(self) -> float:
        """Busy at both ends while nothing moves."""
        return idle_cores((os.getpid(), self._pid))

    def close(self) -> None:
        self._service.stop()

    def _offered(self, blocks: int) -> Ticket:
        handed = ticket(os.urandom(8).hex(), 1, kv_address=self._address, lease_ms=30_000.0)
        self._pipe.send(("offer", handed, blocks))
        self._pipe.recv()
        return handed

    def _fetch(self, ticket: Ticket, blocks: int) -> None:
        self._service.fetch(ticket, 0, list(range(blocks)))
        while not (ended := self._service.drain()):
            self._service.wait_end(1.0)
        if ended[0].error:
            raise RuntimeError(ended[0].message)


class Raw:
    """One plain UCX connection to the child, kept over all rounds."""

    def __init__(self, pipe: Connection, pid: int, port: int, transports: str) -> None:
        self._pipe = pipe
        self._pid = pid
        self._transports = transports
        self._runner = asyncio.Runner()
        self._tag = 0
        self._memory = np.zeros(GEOMETRY.end, np.uint8)
        self._runner.run(self._connect(port, transports))

    def move(self, blocks: int, *, spread: bool = False) -> Sample:
        """From and to the same few messages again and again, or `spread` over as much memory as a
        handoff of these blocks reads and writes."""
        message, window = handoff_chunking(blocks, self._transports)
        receive = partial(self._receive, blocks * BLOCK_BYTES, message, max(window, WINDOW_MIN))
        return measured(lambda: self._runner.run(receive(spread)), (self._pid,))

    async def _connect(self, port: int, transports: str) -> None:
        self._ucx = UcxWorker(transports, lambda _: None)
        self._ucx.start()
        self._link = self._ucx.connect("127.0.0.1", port)
        opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._link.open(opened.set_result)
        await opened

    async def _receive(self, size: int, message: int, window: int, spread: bool) -> None:
        """`size` bytes in messages of `message` bytes, `window` posted at a time."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        count = -(-size // message)
        first, self._tag = self._tag + 1, self._tag + count
        left = count

        def post(at: int) -> None:
            def arrived(error: str | None) -> None:
                nonlocal left
                left -= 1
                if error is not None:
                    done.set_exception(RuntimeError(error))
                elif at + window < count:
                    post(at + window)
                elif not left:
                    done.set_result(None)

            start = (at if spread else at % window) * message
            buffer = self._memory[start : start + message]
            self._link.receive(buffer, data_tag(first + at, 0, 0), arrived)

        for at in range(min(window, count)):
            post(at)
        self._pipe.send(("raw", size, message, first, spread))
        await done


class Nixl:
    """The pair of `kv_nixl`, stopped but while it moves."""

    def __init__(self, process: subprocess.Popen[str], child: int) -> None:
        self._process = process
        self._pids = (process.pid, child)
        self._signal(signal.SIGSTOP)

    @classmethod
    def start(cls, transports: str) -> Self | str:
        """Or why there is none."""
        python = Path(os.environ.get(PEERS, "")) / "bin" / "python"
        if not os.environ.get(PEERS) or not python.exists():
            return f"{PEERS} names no environment with NIXL (see tests/bench/kv_nixl.py)"
        script = Path(__file__).with_name("kv_nixl.py")
        process = subprocess.Popen(
            [str(python), str(script), str(LAYERS), str(BLOCKS), str(PAGE), NIXL_MODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_nixl_settings(transports),
            text=True,
        )
        child = _answer(process)
        return cls(process, int(child[0])) if child else "it did not start"

    def moves(self, blocks: int, count: int) -> list[Sample]:
        """Awake for all of them, after one that does not count."""
        self._signal(signal.SIGCONT)
        samples = [self._move(blocks) for _ in range(count + 1)]
        self._signal(signal.SIGSTOP)
        return samples[1:]

    def idle_cores(self) -> float:
        """Busy at both ends while nothing moves, if nobody stopped them."""
        self._signal(signal.SIGCONT)
        cores = idle_cores(self._pids)
        self._signal(signal.SIGSTOP)
        return cores

    def _move(self, blocks: int) -> Sample:
        assert self._process.stdin is not None
        self._process.stdin.write(f"move 0 {blocks}\n")
        self._process.stdin.flush()
        answer = _answer(self._process)
        if not answer:
            raise RuntimeError("NIXL stopped to answer")
        return Sample(float(answer[0]), float(answer[1]))

    def close(self) -> None:
        for pid in reversed(self._pids):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _signal(self, which: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, which)


def _nixl_settings(transports: str) -> dict[str, str]:
    """What NIXL is fastest with: over TCP alone our segments (a fifth less CPU than with UCX's
    own), else UCX's own settings, with which it reads the other's memory in one copy (CMA)."""
    shared = "sm" in transports.split(",")
    kept = {k: v for k, v in os.environ.items() if not (shared and k.startswith("UCX_"))}
    return kept | {"UCX_TLS": transports}


def _answer(process: subprocess.Popen[str]) -> list[str]:
    """The words after the marker of the next line that is for us; empty when it ended."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("nixl-ready"):
            return line.split()[1:]
    return []


class DigestSwitch:
    """Whether this process's copies sum up what they copy, from the next one on. `spent`: what
    the copies took of CPU since."""

    def __init__(self) -> None:
        self._kernels = {
            mode: Kernel(
                *(self._timed(code) for code in (made.read, made.copy, made.copy_nontemporal))
            )
            for mode, made in (("on", kernel.compiled()), ("off", kernel.compiled(summing=False)))
        }
        self.use("on")

    def use(self, mode: Digests) -> None:
        chosen = self._kernels[mode]
        kernel.kernel = lambda: chosen  # type: ignore[assignment]
        self.spent = 0.0

    def _timed(self, code: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: int) -> None:
            start = time.thread_time()
            code(*arguments)
            self.spent += time.thread_time() - start

        return run


# ---------------------------------------------------------------- the child


def serve(pipe: Connection, transports: str) -> None:
    """P of the handoffs and sender of the raw messages; both sleep when nothing is asked."""
    base = on_lines(GEOMETRY.end)
    base[:] = np.random.default_rng(1).integers(0, 256, GEOMETRY.end, dtype=np.uint8)
    service = KvService(
        WorkerIdentity("p0", "inc-p0", "f"), settings(transports), HostMemory(base, GEOMETRY)
    )
    address = service.start()
    asyncio.run(_serve_loop(pipe, service, address, transports))
    service.stop()


async def _serve_loop(pipe: Connection, service: KvService, address: str, transports: str) -> None:
    stopped = asyncio.Event()
    memory = np.ones(GEOMETRY.end, np.uint8)
    switch = DigestSwitch()
    links: list[UcxLink] = []

    def accepted(link: UcxLink) -> None:
        links.append(link)
        link.open(lambda _: None)

    def send_raw(size: int, message: int, tag: int, spread: bool) -> None:
        for at, start in enumerate(range(0, size, message)):
            part = memory[start if spread else 0 :][: min(message, size - start)]
            links[0].send(part, data_tag(tag + at, 0, 0), lambda _: None)

    def asked() -> None:
        verb, *args = pipe.recv()
        if verb == "exit":
            stopped.set()
        elif verb == "digest":
            switch.use(*args)
        elif verb == "spent":
            pipe.send(switch.spent)
        elif verb == "raw":
            send_raw(*args)
        else:
            ticket, blocks = args
            service.offer(ticket, blocks)
            service.progress((ticket.request_id, 1), list(range(blocks)), blocks)
            service.drain()
            pipe.send(("offered",))

    ucx = UcxWorker(transports, accepted)
    ucx.start()
    asyncio.get_running_loop().add_reader(pipe.fileno(), asked)
    pipe.send((address, ucx.listen(0)))
    await stopped.wait()
    ucx.close()

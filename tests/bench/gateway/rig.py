"""One pump, one client process and one or more gateways (or a floor) between them."""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from loadtest.ports import free_port
from tests.bench.gateway import clients, floor, pump, worker
from tests.bench.gateway.clients import Load, Seen
from tests.bench.gateway.cpu import cpu_seconds
from tests.bench.gateway.pump import Plan
from tests.rigs.fleet import wait_until

SPAWN = multiprocessing.get_context("spawn")


@dataclass
class Measured:
    """One load: CPU seconds of the process under test, what the clients saw, when steps were
    sent."""

    cpu: float
    seen: Seen
    sent: list[float]

    @property
    def transit_ms(self) -> list[float]:
        """Each token's way from D's send to the client's read, sorted."""
        pairs = (zip(each, self.sent, strict=False) for each in self.seen.arrivals)
        return sorted((came - sent) * 1000 for came, sent in itertools.chain(*pairs))

    @property
    def added_itl_ms(self) -> list[float]:
        """By how much each gap between tokens grew on the way, sorted."""
        gaps = []
        for stream in self.seen.arrivals:
            ways = [came - sent for came, sent in zip(stream, self.sent, strict=False)]
            gaps += [abs(b - a) * 1000 for a, b in itertools.pairwise(ways)]
        return sorted(gaps)


@dataclass
class Rig:
    port: int
    pids: list[int]
    pump: Connection
    clients: Connection

    def measure(self, streams: int, tokens: int, interval_ms: float) -> Measured:
        self._plan(Plan(streams, tokens, interval_ms))
        return self._measured(Load(self.port, streams, tokens), streamed=True)

    def requests(self, count: int, streams: int) -> Measured:
        self._plan(Plan(0, 1, 0))
        return self._measured(Load(self.port, streams, 1, count), streamed=False)

    def ttft_ms(self, count: int, streams: int, pause_ms: float) -> list[float]:
        """Sorted; of requests for one token, each from its first byte to the whole answer."""
        self.clients.send(Load(self.port, streams, 1, count, pause_ms))
        seen = self.clients.recv()
        assert not seen.bad, f"{seen.bad} refused: {seen.first_bad!r}"
        return sorted(seconds * 1000 for seconds in seen.seconds)

    def _plan(self, plan: Plan) -> None:
        self.pump.send(plan)
        self.pump.recv()

    def _measured(self, load: Load, *, streamed: bool) -> Measured:
        before = sum(map(cpu_seconds, self.pids))
        self.clients.send(load)
        seen = self.clients.recv()
        cpu = sum(map(cpu_seconds, self.pids)) - before
        return Measured(cpu, seen, self.pump.recv() if streamed else [])


@contextmanager
def rig(gateways: int, *, router: bool = False) -> Iterator[Rig]:
    """`gateways` 0: the floor instead. `router`: a real one, and a worker, instead of the pump."""
    folder = Path(tempfile.mkdtemp(prefix="baton-"))
    control = f"ipc://{folder}/control.sock"
    pipes, children = [], []
    roles: list[tuple[Callable[..., None], tuple[str, ...]]] = [
        (worker.main if router else pump.main, (control,)),
        (clients.main, ()),
    ]
    if not gateways:
        roles.append((floor.main, (control, f"ipc://{folder}/floor.sock")))
    for target, arguments in roles:
        here, there = SPAWN.Pipe()
        child = SPAWN.Process(target=target, args=(there, *arguments), daemon=True)
        child.start()
        pipes.append(here)
        children.append(child)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        heard = [pipe.recv() for pipe in pipes]
        port = free_port() if gateways else heard[2]
        processes += [_daemon("gateway", folder, port, f"g{n}") for n in range(gateways)]
        if router:
            processes.append(_daemon("router", folder, port, "r0"))
        pids = [process.pid for process in processes[:gateways]] or [int(children[2].pid or 0)]
        if gateways:
            wait_until("the gateways are ready", lambda: _ready(folder, port, gateways), 30)
        yield Rig(port, pids, pipes[0], pipes[1])
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(15)
        for pipe in pipes:
            pipe.send(None)
        for child in children:
            child.join(10)
            child.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _daemon(service: str, folder: Path, port: int, name: str) -> subprocess.Popen[bytes]:
    file = folder / "fleet.toml"
    file.write_text(
        f'[fleet]\nrun_dir = "{folder}"\ndrain_ms = 0\n[gateway]\nport = {port}\n[decode.d0]\n'
    )
    command = [sys.executable, "-m", "services.cli", service, "--config", str(file)]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([*command, "--name", name], stdout=log, stderr=log)


def _ready(folder: Path, port: int, gateways: int) -> bool:
    if any("listens" not in (folder / f"g{n}.log").read_text() for n in range(gateways)):
        return False
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False

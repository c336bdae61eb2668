"""A fleet of real daemons, each started by its own command, so that each can be broken by itself.

Unlike `baton up` it knows no start limit and may give each daemon another environment, another
network namespace (`prefix`) or a bent data plane (`module`). It restarts what died, as a supervisor
would, unless told to leave it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from common.errors import BatonError
from common.net.admin_client import ask
from loadtest.ports import free_port
from services.up.plan import Flags, children, fleet_toml
from tests.chaos.wire import Wire
from tests.rigs.processes import kill_family

READY_SECONDS = 60.0
READY_SECONDS_VLLM = 240.0
POLL_SECONDS = 0.02
RESTART_SECONDS = 0.3


@dataclass(frozen=True)
class Plan:
    """What runs. `settings`: environment of all daemons; `own`: further, by daemon. `prefix`: what
    stands before a daemon's command; `module`: what is run instead of `services.cli`. `tapped`:
    daemons whose way to the router leads through a `Wire`."""

    prefill: int = 2
    decode: int = 2
    gateways: int = 1
    routers: int = 1
    engine: str = "sim"
    settings: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    prefix: Mapping[str, list[str]] = field(default_factory=dict)
    module: Mapping[str, str] = field(default_factory=dict)
    tapped: tuple[str, ...] = ()


SIM = {
    "BATON_ROUTER__REMOTE_PREFILL": "always",
    "BATON_ENGINE__SIM__KV_BLOCKS": "512",
    "BATON_ENGINE__SIM__KV_BLOCK_BYTES": "16384",
}


@dataclass(frozen=True)
class Death:
    name: str
    pid: int
    status: int
    at: float


class Cell:
    """`deaths`: every end of a process that was not ordered by `close`."""

    def __init__(self, plan: Plan, run_dir: Path) -> None:
        self.plan = plan
        self.run_dir = run_dir
        self.port = free_port()
        self.deaths: list[Death] = []
        #: How often all processes were looked at for deaths.
        self.looks = 0
        self.left_down: set[str] = set()
        self.wires = {
            name: Wire(run_dir / f"{name}.wire.sock", run_dir / "control.sock")
            for name in plan.tapped
        }
        self._config = run_dir / "fleet.toml"
        self._roles = {
            child.name: child.role.value
            for child in children(
                [f"p{i}" for i in range(plan.prefill)],
                [f"d{i}" for i in range(plan.decode)],
                (),
                plan.gateways,
                ("r1",)[: plan.routers - 1],
            )
            if child.name != "h0"
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._due: dict[str, float] = {}
        self._tender: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def admin(self, router: str = "r0") -> str:
        return f"ipc://{self.run_dir}/{'' if router == 'r0' else f'{router}.'}admin.sock"

    def names(self, role: str) -> list[str]:
        return [name for name, its in self._roles.items() if its == role]

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self._running[name].pid)

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def runs(self, name: str) -> bool:
        return name in self._running and self._running[name].poll() is None

    def log(self, name: str) -> str:
        return (self.run_dir / "logs" / f"{name}.log").read_text(errors="replace")

    async def ctl(self, verb: str, **args: Any) -> Any:
        """Raises BatonError while the first router does not answer."""
        answer = await ask(self.admin(), verb, args, seconds=2.0)
        assert answer.ok, answer.error
        return answer.result

    async def told(self, router: str, verb: str, **args: Any) -> Any:
        """What this router says, None if it is not there or refuses."""
        try:
            answer = await ask(self.admin(router), verb, args, seconds=2.0)
        except BatonError:
            return None
        return answer.result if answer.ok else None

    async def workers(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in await self.ctl("workers") if row["state"] != "gone"}

    def signal(self, name: str, signum: signal.Signals) -> None:
        self._running[name].send_signal(signum)

    def start(self, name: str) -> None:
        log_path = self.run_dir / "logs" / f"{name}.log"
        plan, supervisor = self.plan, {"BATON_SUPERVISOR_PID": str(os.getpid())}
        base = SIM if plan.engine == "sim" else {}
        environment = os.environ | base | dict(plan.settings) | dict(plan.own.get(name, {}))
        if name in self.wires:
            environment["BATON_ROUTER__CONTROL"] = self.wires[name].address
        command = [*plan.prefix.get(name, []), sys.executable]
        command += ["-m", plan.module.get(name, "services.cli"), self._roles[name]]
        with log_path.open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*command, "--config", str(self._config), "--name", name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | supervisor,
                start_new_session=True,
            )

    async def open(self) -> None:
        """Returns when the gateway can serve and every worker is ready."""
        flags = Flags(
            models=(("baton-tiny", ""),),
            prefill=self.plan.prefill,
            decode=self.plan.decode,
            engine=self.plan.engine,
            host="127.0.0.1",
            port=self.port,
            health_port=free_port(),
            run_dir=str(self.run_dir),
            cores=2,
            gateways=self.plan.gateways,
            routers=self.plan.routers,
        )
        self._config.write_text(fleet_toml(flags), encoding="utf-8")
        (self.run_dir / "logs").mkdir()
        for wire in self.wires.values():
            await wire.open()
        for name in self._roles:
            self.start(name)
        self._tender = asyncio.get_running_loop().create_task(self._tend())
        seconds = READY_SECONDS if self.plan.engine == "sim" else READY_SECONDS_VLLM
        await self.until("every worker is ready", self.all_ready, seconds)
        await self.until("gateways listen", self._gateways_listen, seconds)

    async def all_ready(self) -> bool:
        try:
            status = await self.ctl("status")
        except BatonError:
            return False
        counted = (status["prefill_ready"], status["decode_ready"], status["gateways"])
        return bool(counted == (self.plan.prefill, self.plan.decode, self.plan.gateways))

    def _gateways_listen(self) -> bool:
        """They are known to the router before."""
        return all('"daemon.ready"' in self.log(name) for name in self.names("gateway"))

    async def until(self, what: str, true: Callable[[], Any], seconds: float = 10.0) -> float:
        """Polls a condition, sync or async; returns the seconds it took. Raises AssertionError."""
        start = time.monotonic()
        while True:
            held = true()
            if await held if asyncio.iscoroutine(held) else held:
                return time.monotonic() - start
            if time.monotonic() - start > seconds:
                raise AssertionError(f"not within {seconds:g} s: {what}")
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        if self._tender is not None:
            self._tender.cancel()
        for wire in self.wires.values():
            wire.close()
        for process in self._running.values():
            kill_family(process)
        for process in self._running.values():
            process.wait()

    async def _tend(self) -> None:
        """Reaps what died, and starts it again unless it is to stay down."""
        while True:
            now = time.monotonic()
            for name, process in self._running.items():
                status = process.poll()
                if status is not None and name not in self._due:
                    self.deaths.append(Death(name, process.pid, status, now))
                    self._due[name] = now + RESTART_SECONDS
            for name, due in list(self._due.items()):
                if now >= due and name not in self.left_down:
                    del self._due[name]
                    self.start(name)
            self.looks += 1
            await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def cell(plan: Plan) -> AsyncIterator[Cell]:
    """A ready fleet that is gone afterwards; its logs are shown when the test fails."""
    running = Cell(plan, Path(tempfile.mkdtemp(prefix="chaos-")))
    try:
        await running.open()
        yield running
    except BaseException:
        for path in sorted((running.run_dir / "logs").glob("*.log")):
            print(f"--- {path.name}", "\n".join(path.read_text().splitlines()[-15:]), sep="\n")
        raise
    finally:
        await running.close()
        shutil.rmtree(running.run_dir, ignore_errors=True)

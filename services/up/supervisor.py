"""The supervisor of `baton up`: starts the children, restarts those that die, drains them in order.

Theory of operation: each child has one root task that spawns it, waits for its end and asks
`restart.py` what then. One that beats no more is killed first (`watchdog.py`). The fleet is ready
when each child was ready or has died once, the gateway's /health says so, and the router counts
every worker that is ready. What keeps dying is told in the run directory, for `baton ctl status`
and the dashboard. On stop the roles are terminated in `STOP_ORDER`, so that streams finish before
the workers under them leave.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import aiohttp

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from common.messages import Role
from common.net.admin_client import ask
from common.net.endpoints import admin_address, config_of_cell
from common.process.flapping_file import FILE, write_flapping
from common.process.handled_request import handled_by
from common.process.lifecycle import Tasks, first_of
from services.up.child import ChildProcess
from services.up.fork_client import ForkServer
from services.up.plan import STOP_ORDER, Child, shared_environment
from services.up.restart import Restarts
from services.up.watchdog import Watchdog

READY_POLL_SECONDS = 0.2
PROGRESS_SECONDS = 5.0
STOP_MARGIN_SECONDS = 8.0
FLAPPING_SECONDS = 1.0
WATCHDOG_SECONDS = 1.0


class Supervisor:
    """A `common.process.lifecycle.Service`. `print_line` writes one line to the terminal."""

    def __init__(
        self,
        config: Config,
        config_path: Path,
        fleet: list[Child],
        clock: Clock,
        print_line: Callable[[str], None],
    ) -> None:
        self._config = config
        self._config_path = config_path
        self._fleet = fleet
        self._clock = clock
        self._print = print_line
        self._started = clock.monotonic()
        self._stopping = False
        self._processes: list[ChildProcess] = []
        self._fork_server: ForkServer | None = None
        self._restarts = Restarts(fleet, config.up.give_up_s, self._started)
        self._watchdog = Watchdog(config.up.watchdog_s)
        #: By child: it was ready, or died.
        self._began = {child.label: asyncio.Event() for child in fleet}
        #: What the file in the run directory says; None until it is written.
        self._told: dict[str, str] | None = None

    def flapping(self) -> dict[str, str]:
        """The children that keep dying, with a sentence each."""
        return self._restarts.flapping(self._clock.monotonic())

    @property
    def stop_seconds(self) -> float:
        per_role = self._config.fleet.drain_ms / 1000 + STOP_MARGIN_SECONDS
        return per_role * len(STOP_ORDER)

    async def start(self, tasks: Tasks) -> str:
        run_dir = Path(self._config.fleet.run_dir)
        environment = shared_environment(self._config, self._fleet, os.environ)
        if environment is not None:
            say = partial(self._line, "fork-server")
            self._fork_server = ForkServer(environment, run_dir, say)
            tasks.start("fork-server", self._fork_server.run())
        for child in self._fleet:
            folder = run_dir / child.cell
            process = ChildProcess(
                child,
                folder / self._config_path.name if child.cell else self._config_path,
                folder,
                on_status=self._reporter(child),
                on_ready=partial(self._on_ready, child.label),
                on_beat=partial(self._watchdog.heard, child.label),
                watchdog_seconds=self._config.up.watchdog_s,
                fork_server=self._fork_server,
            )
            self._processes.append(process)
            tasks.start(f"child-{child.label}", self._supervise(process))
        tasks.start("flapping", self._tell_flapping(run_dir))
        tasks.start("watchdog-of-children", self._kill_hung())
        progress = tasks.start("progress", self._report_progress(), ends=True)
        await self._until_ready(tasks)
        progress.cancel()
        self._print(self._ready_text())
        return "the fleet is ready"

    async def stop(self) -> None:
        self._stopping = True
        if self._fork_server is not None:
            self._fork_server.close()
        if any(process.running for process in self._processes):
            self._print("stopping: running requests may finish (Ctrl-C again to leave at once)")
        for role in STOP_ORDER:
            batch = [p for p in self._processes if p.child.role is role and p.running]
            for process in batch:
                process.terminate()
            await self._reap(batch)
        for process in self._processes:
            process.close()
        for name, sentence in self.flapping().items():
            self._print(f"{name} {sentence}")
        self._print("stopped")

    def kill_all(self) -> None:
        for process in self._processes:
            process.kill()

    async def _reap(self, batch: list[ChildProcess]) -> None:
        """Waits for these children's ends; kills, and names, the ones that take too long."""
        seconds = self._config.fleet.drain_ms / 1000 + STOP_MARGIN_SECONDS
        try:
            async with asyncio.timeout(seconds):
                for process in batch:
                    await process.wait()
        except TimeoutError:
            for process in batch:
                if process.running:
                    self._print(f"{process.child.label} did not stop in {seconds:.0f} s: killed")
                    process.kill()

    async def _supervise(self, process: ChildProcess) -> None:
        name = process.child.label
        while True:
            await process.spawn()
            exit_code = await process.wait()
            self._watchdog.ended(name)
            await self._unless_stopping()
            process.ready.clear()
            self._began[name].set()
            reason = _ended(exit_code, process)
            pause = self._restarts.died(name, reason, self._clock.monotonic())
            self._check_given_up(process, reason)
            self._line(name, f"{reason}; starting it again in {pause:.1f} s")
            await asyncio.sleep(pause)
            await self._unless_stopping()
            self._check_given_up(process, reason)

    async def _unless_stopping(self) -> None:
        """Never returns once the run ends: nothing is started then."""
        if self._stopping:
            await asyncio.Event().wait()

    def _check_given_up(self, process: ChildProcess, reason: str) -> None:
        """Raises BatonError, which ends the run."""
        name = process.child.label
        why = self._restarts.give_up(name, self._clock.monotonic())
        if why:
            sentence = f"{name} {reason}; {why} (whole log: {process.log_path})"
            raise BatonError(Code.ENGINE_FAILED, sentence)

    def _on_ready(self, name: str) -> None:
        self._restarts.ready(name, self._clock.monotonic())
        self._began[name].set()

    async def _kill_hung(self) -> None:
        """On the way out `_reap` kills what takes too long."""
        seconds, before = self._config.up.watchdog_s, self._clock.monotonic()
        while True:
            await asyncio.sleep(WATCHDOG_SECONDS)
            now = self._clock.monotonic()
            hung = self._watchdog.passed(now - before)
            before = now
            for process in self._processes if not self._stopping else ():
                if process.child.label in hung:
                    self._line(process.child.label, f"hangs: no beat for {seconds:g} s; killing it")
                    process.kill()

    async def _tell_flapping(self, run_dir: Path) -> None:
        """Keeps the file in the run directory true."""
        while True:
            flapping = self.flapping()
            if flapping != self._told:
                self._write_flapping(run_dir, flapping)
            await asyncio.sleep(FLAPPING_SECONDS)

    def _write_flapping(self, run_dir: Path, flapping: dict[str, str]) -> None:
        try:
            write_flapping(run_dir, flapping)
        except OSError as error:
            self._print(f"{run_dir / FILE} cannot be written: {error.strerror}")
            return
        for name in (self._told or {}).keys() - flapping.keys():
            self._line(name, "has been ready for a while: it no longer keeps dying")
        self._told = flapping

    async def _until_ready(self, tasks: Tasks) -> None:
        all_ready = tasks.start("all-ready", self._all_ready(), ends=True)
        await first_of(all_ready, tasks.failed)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while not tasks.failed.done():
                if await self._is_healthy(session) and await self._all_counted():
                    return
                await asyncio.sleep(READY_POLL_SECONDS)
        _, error = tasks.failed.result()
        raise error if error is not None else BatonError(Code.INTERNAL, "a child task ended")

    async def _all_ready(self) -> None:
        for began in self._began.values():
            await began.wait()

    async def _is_healthy(self, session: aiohttp.ClientSession) -> bool:
        """Our own child on this host; its certificate names the public one."""
        try:
            async with session.get(f"{self._url()}/health", ssl=False) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _all_counted(self) -> bool:
        """By the router of each cell."""
        for cell in {child.cell for child in self._fleet}:
            if not await self._counted(cell):
                return False
        return True

    async def _counted(self, cell: str) -> bool:
        config = config_of_cell(self._config, cell) if cell else self._config
        try:
            answer = await ask(admin_address(config), "status")
        except BatonError:
            return False
        counted = answer.result if answer.ok else {}
        ready = [process.child for process in self._processes if process.ready.is_set()]
        here = [child for child in ready if child.cell == cell]
        roles = [part for child in here for part in child.parts(self._config)]
        prefills, decodes = counted.get("prefill_ready", 0), counted.get("decode_ready", 0)
        awake = decodes + counted.get("decode_warm", 0) >= roles.count(Role.DECODE)
        return bool(awake) and prefills >= roles.count(Role.PREFILL)

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            waiting = [p for p in self._processes if not p.ready.is_set()]
            text = ", ".join(f"{p.child.label} ({p.status})" for p in waiting)
            if text and not self._stopping:
                self._line("waiting for", text)

    def _reporter(self, child: Child) -> Callable[[str], None]:
        def report(status: str) -> None:
            if not self._stopping:
                self._line(child.label, status)

        return report

    def _line(self, name: str, what: str) -> None:
        self._print(f"[{self._clock.monotonic() - self._started:6.1f} s] {name}: {what}")

    def _url(self) -> str:
        gateway = self._config.gateway
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(gateway.host, gateway.host)
        scheme = "https" if gateway.tls_certificate_file else "http"
        return f"{scheme}://{host}:{gateway.port}"

    def _ready_text(self) -> str:
        model, served = self._config.model.served_name, ", ".join(self._config.served)
        seconds = self._clock.monotonic() - self._started
        body = (
            f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}], '
            '"max_tokens": 32}'
        )
        key = '-H "authorization: Bearer $BATON_KEY" ' if self._config.gateway.keys_file else ""
        return (
            f"\nReady in {seconds:.1f} s: {self._url()}/v1 serves {served}. Try:\n\n"
            f"  curl {self._url()}/v1/chat/completions -H 'content-type: application/json' \\\n"
            f"    {key}-d '{body}'\n\n"
            f"Look inside: baton ctl status --run-dir {self._config.fleet.run_dir}\n"
            f"Logs: {Path(self._config.fleet.run_dir) / 'logs'}    Stop: Ctrl-C"
        )


def _ended(exit_code: int, process: ChildProcess) -> str:
    if exit_code < 0:
        handled = handled_by(process.handled_path)
        work = f" while it handled {handled}" if handled else ""
        return f"was killed by signal {-exit_code}{work}"
    return f"exited with status {exit_code}: {process.exit_reason()}"

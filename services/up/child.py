"""One supervised daemon: its process, its log file, and the status it reports by sd_notify."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from common import config as configuration
from common.errors import BatonError, Code, ConfigError
from common.process.handled_request import handled_path
from common.process.owned_files import open_own, own_folder
from services.up.fork_client import ForkedProcess, ForkServer
from services.up.plan import Child, library_environment

LOG_BYTES_MAX = 16 << 20
TAIL_BYTES = 65_536
NOTIFY_BYTES = 4096


class ChildProcess:
    """One daemon over all its restarts. `on_status` is called with each status line that it
    reports, `on_ready` when it has become ready, and `on_beat` then and with each beat. It has to
    beat within `watchdog_seconds`, unless they are 0. Workers are forked off the `fork_server`."""

    def __init__(
        self,
        child: Child,
        config_path: Path,
        run_dir: Path,
        *,
        on_status: Callable[[str], None],
        on_ready: Callable[[], None],
        on_beat: Callable[[], None],
        watchdog_seconds: float,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.child = child
        self.log_path = run_dir / "logs" / f"{child.name}.log"
        #: Set while the process has reported READY=1.
        self.ready = asyncio.Event()
        #: The latest status line.
        self.status = "starting"
        #: Where a gateway writes which request it works on.
        self.handled_path = handled_path(run_dir, child.name)
        self._config_path = config_path
        self._notify_path = run_dir / f"{child.name}.notify"
        self._on_status = on_status
        self._on_ready = on_ready
        self._on_beat = on_beat
        self._watchdog_seconds = watchdog_seconds
        self._fork_server = fork_server
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._notify = self._open_notify()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def spawn(self) -> None:
        """Raises BatonError when the process cannot be started at all."""
        self.ready.clear()
        self._print("starting")
        environment = os.environ | self.child.environment
        environment |= {
            "NOTIFY_SOCKET": str(self._notify_path),
            "BATON_SUPERVISOR_PID": str(os.getpid()),
            "WATCHDOG_USEC": str(int(self._watchdog_seconds * 1e6)),
        }
        environment.pop("WATCHDOG_PID", None)  # this supervisor's own, where it has one
        role, name = self.child.role.value, self.child.name
        arguments = (role, "--config", str(self._config_path), "--name", name)
        try:
            with self._open_log() as log:
                self._process = await self._forked(arguments, environment, log)
                if self._process is not None:
                    return
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "services.cli", *arguments),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            sentence = f"cannot start {self.child.label}: {error.filename}: {error.strerror}"
            raise BatonError(Code.INTERNAL, sentence) from error

    async def _forked(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> ForkedProcess | None:
        """None if it has to be started in the plain way, as everything but workers is."""
        server = self._fork_server
        if server is None or not self.child.is_worker or not self._imports_alike(server):
            return None
        if server.is_importing:
            self._print("importing vLLM")
        return await server.fork(arguments, environment, log)

    def _imports_alike(self, server: ForkServer) -> bool:
        """By the fleet file as it is now."""
        try:
            config = configuration.load(self._config_path)
            return library_environment(config, self.child, os.environ) == server.environment
        except ConfigError:  # the daemon itself says so
            return False

    async def wait(self) -> int:
        """The exit status; negative for a signal, as in subprocess."""
        assert self._process is not None
        return await self._process.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._notify.fileno())
        self._notify.close()
        self._notify_path.unlink(missing_ok=True)

    def exit_reason(self) -> str:
        """Why it ended, from the end of its log: the last failure it logged, else the last line."""
        try:
            with open_own(self.log_path, "rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return "no log"
        for line in reversed(lines):
            sentence = _failure_sentence(line)
            if sentence:
                return sentence
        return next((line.strip() for line in reversed(lines) if line.strip()), "an empty log")

    def _open_log(self) -> IO[bytes]:
        own_folder(self.log_path.parent)
        log = open_own(self.log_path, "ab")
        if log.tell() <= LOG_BYTES_MAX:
            return log
        log.close()
        self.log_path.replace(self.log_path.with_suffix(".log.1"))
        return open_own(self.log_path, "ab")

    def _signal(self, signum: signal.Signals) -> None:
        if self.running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                self._process.send_signal(signum)

    def _print(self, status: str) -> None:
        self.status = status
        self._on_status(status)

    def _open_notify(self) -> socket.socket:
        self._notify_path.unlink(missing_ok=True)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.setblocking(False)
        channel.bind(str(self._notify_path))
        asyncio.get_running_loop().add_reader(channel.fileno(), self._on_notify)
        return channel

    def _on_notify(self) -> None:
        while True:
            try:
                state = self._notify.recv(NOTIFY_BYTES).decode(errors="replace")
            except BlockingIOError:
                return
            fields = dict(line.split("=", 1) for line in state.splitlines() if "=" in line)
            if fields.get("READY") == "1" and not self.ready.is_set():
                self.ready.set()
                self._on_ready()
            if "1" in (fields.get("READY"), fields.get("WATCHDOG")):
                self._on_beat()
            if "STATUS" in fields:
                self._print(fields["STATUS"])


def _failure_sentence(line: str) -> str:
    if '"daemon.failed"' not in line:
        return ""
    try:
        return str(json.loads(line).get("sentence", ""))
    except json.JSONDecodeError:
        return ""

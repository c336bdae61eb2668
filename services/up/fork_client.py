"""The supervisor's side of `services/fork_server.py`, the process that vLLM workers are forked off.

Theory of operation: one root task keeps that process there. It starts it, waits for its greeting
and then for its end, says why it ended, and starts it again after a pause that doubles; where it
never comes to greet, it gives up. Whoever asks for a worker meanwhile waits for the import while it
goes on, within bounds, and otherwise is told to start the worker in the plain way. The supervisor
adopts orphans (PR_SET_CHILD_SUBREAPER) while it asks, one request at a time. A worker begins only
at the supervisor's word, so that none runs that the supervisor does not know of.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import msgspec
import psutil

from common.process.fork_request import GO, GREETING, PID, REQUEST, UNFIT, Start
from common.process.owned_files import open_own, own_folder

START_SECONDS = 120.0
ANSWER_SECONDS = 10.0
PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 60.0
#: Starts in a row that came to nothing, after which there is no other.
FAILURES_MAX = 3
LIBRARIES = ("vllm", "torch")
PR_SET_CHILD_SUBREAPER = 36
COMMAND = (sys.executable, "-m", "services.fork_server")


class ForkedProcess:
    """A child of this process that another forked. It is waited for as one of asyncio's."""

    def __init__(self, pid: int) -> None:
        """Raises OSError: ChildProcessError if it is no child of this process."""
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        self.pid = pid
        #: The exit status, or the negative number of a signal; None while it runs.
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Raises ProcessLookupError when it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, signum)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()


class ForkServer:
    """`environment`: that of workers which may be forked off it, without what the supervisor adds
    for each. `say` gets a sentence when it was lost. `command` starts it."""

    def __init__(
        self,
        environment: Mapping[str, str],
        run_dir: Path,
        say: Callable[[str], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.environment = dict(environment)
        self._log_path = run_dir / "logs" / "fork-server.log"
        self._say = say
        self._command = command
        #: Set when it has greeted, and while there is none to wait for.
        self._settled = asyncio.Event()
        self._asking = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        #: The socket to it, once it has greeted.
        self._socket: socket.socket | None = None
        #: Which files of the libraries it has imported.
        self._libraries: tuple[object, ...] = ()
        #: Why this side ended it; empty if it did not.
        self._reason = ""
        self._closed = False
        #: Those that it forked and that have not ended.
        self._workers: list[ForkedProcess] = []

    @property
    def is_importing(self) -> bool:
        return not self._settled.is_set()

    async def run(self) -> None:
        """Keeps the process there until it is cancelled."""
        failures, pause = 0, PAUSE_SECONDS
        while failures < FAILURES_MAX and not self._closed:
            self._settled.clear()
            greeted, reason = await self._serve()
            self._settled.set()
            failures = 0 if greeted else failures + 1
            pause = PAUSE_SECONDS if greeted else min(2 * pause, PAUSE_SECONDS_MAX)
            if not reason:
                break
            if not self._closed:
                self._say(f"{reason}; workers import vLLM themselves meanwhile")
            await asyncio.sleep(pause)
        await asyncio.Event().wait()

    async def fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> ForkedProcess | None:
        """A worker that runs `baton` with these arguments; None if it has to be started in the
        plain way. Never returns once this is closed."""
        await self._settled.wait()
        async with self._asking:
            if self._closed:
                await asyncio.Event().wait()
            if self._socket is None:
                return None
            if self._libraries != _libraries():
                self._end("ended because other libraries are installed now")
                return None
            try:
                with adopting():
                    forked = await self._ask(self._socket, arguments, environment, log)
                self._workers = [worker for worker in self._workers if worker.returncode is None]
                self._workers += [forked] if forked is not None else []
                return forked
            except OSError:
                self._end("was ended because it did not answer")
                return None
            except asyncio.CancelledError:
                self._end("was ended with an answer due")
                raise
            finally:
                reap_orphans({worker.pid for worker in self._workers})

    def close(self) -> None:
        """Ends the process; no worker is forked any more."""
        self._closed = True
        self._end("was closed")

    def _end(self, reason: str) -> None:
        self._reason = reason
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                self._process.kill()

    async def _serve(self) -> tuple[bool, str]:
        """One process from its start to its end: whether it greeted, and why it ended;
        empty if there must not be another."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._libraries, self._reason = _libraries(), ""
        with ours:
            try:
                with theirs, self._open_log() as log:
                    self._process = process = await asyncio.create_subprocess_exec(
                        *self._command,
                        stdin=theirs.fileno(),
                        stdout=log,
                        stderr=log,
                        env=self._own_environment(),
                        start_new_session=True,
                    )
            except OSError as error:
                return False, f"cannot be started: {error.strerror}"
            try:
                greeted = await self._greeting(ours)
                if greeted:
                    self._socket = ours
                    self._settled.set()
                exit_code = await process.wait()
            finally:
                self._socket = None
        if exit_code == UNFIT:
            return False, ""
        how = f"by signal {-exit_code}" if exit_code < 0 else f"with status {exit_code}"
        return greeted, self._reason or f"ended {how} ({self._log_path})"

    async def _greeting(self, ours: socket.socket) -> bool:
        try:
            async with asyncio.timeout(START_SECONDS):
                return await _receive(ours) == GREETING
        except OSError:
            self._end(f"was ended because it took more than {START_SECONDS:g} s to import vLLM")
            return False

    async def _ask(
        self,
        server: socket.socket,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
    ) -> ForkedProcess | None:
        """Raises OSError, TimeoutError."""
        start = Start(
            [os.fsencode(word) for word in arguments],
            {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
        )
        reader, writer = os.pipe()
        with os.fdopen(os.memfd_create("start"), "w+b") as file, os.fdopen(writer, "wb", 0) as go:
            try:
                file.write(msgspec.msgpack.encode(start))
                file.seek(0)
                socket.send_fds(server, [REQUEST], [file.fileno(), log.fileno(), reader])
            finally:
                os.close(reader)
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await _receive(server)
            if len(answer) != PID.size:
                raise ConnectionError("the process that workers are forked off has ended")
            (pid,) = PID.unpack(answer)
            if not pid:
                return None
            forked = ForkedProcess(pid)
            with contextlib.suppress(BrokenPipeError):  # it has just been killed
                go.write(GO)
            return forked

    def _own_environment(self) -> dict[str, str]:
        """The notifications of this supervisor, where it sends any, are none of its business."""
        environment = {**self.environment, "BATON_SUPERVISOR_PID": str(os.getpid())}
        environment.pop("NOTIFY_SOCKET", None)
        return environment

    def _open_log(self) -> IO[bytes]:
        own_folder(self._log_path.parent)
        log = open_own(self._log_path, "ab")
        log.truncate(0)
        return log


async def _receive(channel: socket.socket) -> bytes:
    """One packet; empty when the other end is closed."""
    return await asyncio.get_running_loop().sock_recv(channel, 64)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Orphans below this process become its children within, also those of a daemon that dies just
    then."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def reap_orphans(workers: Collection[int]) -> None:
    """Waits for children that have ended and that nobody waits for, because they were adopted:
    neither workers nor what the supervisor started itself, which leads a session of its own."""
    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if child.pid not in workers and os.getsid(child.pid) != child.pid:
                os.waitpid(child.pid, os.WNOHANG)


def _libraries() -> tuple[object, ...]:
    """Tells whether other ones were installed since. A worker must not be forked off old ones, for
    it would go on with new ones."""
    origins = [spec.origin for spec in map(find_spec, LIBRARIES) if spec is not None]
    files = [Path(origin).stat() for origin in origins if origin is not None]
    return tuple((file.st_ino, file.st_ctime_ns) for file in files)

"""The gateway's side of the helpers: it queues jobs, sends them, and waits for reports.

Theory of operation: the parent process (`process.py`) is started when a job first needs it, and
again after it was lost. Each of `HELPERS` has a socket of its own and does one job at a time. Jobs
that may take long leave one helper free, so that a small request never waits behind them. Waiting
jobs are bounded, in all and for each key, and keys take turns: all this happens before the router
counts anything. Nothing here blocks the loop, and nothing is decoded here that a client wrote.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec

from common.config import Config
from common.errors import BatonError, Code
from common.telemetry.log import Logger
from services.gateway.helper.jobs import (
    AnswerJob,
    Ended,
    Greeting,
    Job,
    Leaving,
    OutOfMemory,
    Refusal,
    Report,
    Result,
    Unusable,
    encode,
    encode_into,
    report_decoder,
)
from services.gateway.helper.process import LENGTH
from services.gateway.requests.refusals import RETRY_SOON_MS

COMMAND = (sys.executable, "-m", "services.gateway.helper.process")
HELPERS = 3
SLOW_MAX = HELPERS - 1
WAITING_MAX = 1_024
START_SECONDS = 120.0
READ_BYTES = 1 << 18
#: How a helper ends that is not its job's fault: untold, by itself, because it waited too long for
#: a CPU, or because the kernel or a person killed it.
NOT_THE_JOBS_FAULT = {None, 0, -signal.SIGALRM, -signal.SIGKILL, -signal.SIGTERM}

Kind = Literal["vllm", "light"]


@dataclass(eq=False, slots=True)
class PendingJob:
    """A job that waits or runs."""

    job: Job
    #: Empty for an anonymous caller.
    key_id: str
    report: asyncio.Future[Result]


class HelperPool:
    """`kind`: what the helpers load. `command` starts their parent."""

    def __init__(
        self, config: Config, kind: Kind, log: Logger, command: Sequence[str] | None = None
    ) -> None:
        self._setup = encode(config)
        self._limits = config.gateway.limits
        self._log = log
        self._command = list(command or (*COMMAND, kind))
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._links: set[HelperLink] = set()
        self._ready: asyncio.Future[None] | None = None
        self._closed = False
        #: By key, the key whose turn is next first.
        self._waiting: OrderedDict[str, deque[PendingJob]] = OrderedDict()
        self._waiting_count = 0

    @property
    def pid(self) -> int | None:
        """Of the helpers' parent; None while there is none."""
        return self._parent.pid if self._parent is not None else None

    async def start(self) -> None:
        """Waits until a helper can work. Raises BatonError(OVERLOADED) if none comes to that."""
        await asyncio.shield(self.begin())

    async def run(self, job: Job, key_id: str = "") -> Result:
        """What a helper found. Raises BatonError: what the helper refused; INVALID_REQUEST if the
        job passed a bound of its limits; RATE_LIMITED while too many of the key wait; OVERLOADED
        while too many wait, or if the helper was lost. An answer is always taken: the engines have
        computed it, and there are no more than streams."""
        if not isinstance(job, AnswerJob):
            self._check_room(key_id)
        self.begin()
        pending = PendingJob(job, key_id, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(key_id, deque()).append(pending)
        self._waiting_count += 1
        self._dispatch()
        try:
            report = await pending.report
        except asyncio.CancelledError:
            self._forget(pending)
            raise
        if isinstance(report, Refusal):
            raise report.error
        if isinstance(report, OutOfMemory):
            raise job.limits(self._limits).too_much(job)
        return report

    def close(self) -> None:
        self._closed = True
        self._stop()

    def _check_room(self, key_id: str) -> None:
        most = self._limits.checks_per_key_max
        if key_id and len(self._waiting.get(key_id, ())) >= most:
            raise BatonError(
                Code.RATE_LIMITED,
                f"{most} requests of this key wait to be checked "
                "(gateway.limits.checks_per_key_max); try again",
                retry_after_ms=RETRY_SOON_MS,
            )
        if self._waiting_count >= WAITING_MAX:
            raise BatonError(
                Code.OVERLOADED,
                f"{WAITING_MAX} requests wait to be checked; try again",
                retry_after_ms=RETRY_SOON_MS,
            )

    def _forget(self, pending: PendingJob) -> None:
        """Its client has left. A job that runs is left to end."""
        jobs = self._waiting.get(pending.key_id)
        if jobs is None or pending not in jobs:
            return
        jobs.remove(pending)
        self._waiting_count -= 1
        if not jobs:
            del self._waiting[pending.key_id]

    def _dispatch(self) -> None:
        for link in [link for link in self._links if link.is_idle]:
            pending = self._next()
            while pending is not None and pending.report.done():
                pending = self._next()
            if pending is None:
                return
            link.give(pending)

    def _next(self) -> PendingJob | None:
        """Of the first key, by turns, whose oldest job may be started now."""
        running = [link.pending for link in self._links if link.pending is not None]
        may_be_slow = sum(pending.job.is_slow for pending in running) < SLOW_MAX
        for key_id, jobs in list(self._waiting.items()):
            at = next(
                (n for n, waiting in enumerate(jobs) if may_be_slow or not waiting.job.is_slow), -1
            )
            if at < 0:
                continue
            pending = jobs[at]
            del jobs[at]
            self._waiting_count -= 1
            if jobs:
                self._waiting.move_to_end(key_id)
            else:
                del self._waiting[key_id]
            return pending
        return None

    # ------------------------------------------------------------ the processes

    def begin(self) -> asyncio.Future[None]:
        """Has the helpers started, unless they are. Done when one can work. Raises
        BatonError(OVERLOADED) when the host has no process or descriptor left for them."""
        if self._ready is None:
            self._parent, self._control = _spawn(self._command, self._setup)
            loop = asyncio.get_running_loop()
            self._ready = ready = loop.create_future()
            ready.add_done_callback(lambda done: done.cancelled() or done.exception())
            for _ in range(HELPERS):
                self._add_helper()
            loop.call_later(START_SECONDS, self._stop_unless_ready, ready)
        return self._ready

    def _add_helper(self) -> None:
        """The socket waits where the parent has yet to load its classes."""
        assert self._control is not None
        try:
            with _pair() as (ours, theirs):
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        except OSError:  # no descriptor is left, or the parent is ending
            asyncio.get_running_loop().call_soon(self._stop)
            return
        self._links.add(HelperLink(ours, self._on_report, self._on_lost))

    def _on_report(self, link: HelperLink, report: Report) -> None:
        ready = self._ready
        if isinstance(report, Unusable):
            sentence = f"vLLM's text classes cannot be used here: {report.reason}"
            self._log.error("helper.failed", sentence=sentence)
            self._stop(sentence)
        elif isinstance(report, Leaving):
            link.takes_jobs = False
        elif isinstance(report, Ended):
            link.exit_code = report.exit_code
        elif isinstance(report, Greeting):
            link.takes_jobs = link.has_greeted = True
            if ready is not None and not ready.done():
                ready.set_result(None)
        else:
            pending = link.take()
            if not pending.report.done():
                pending.report.set_result(report)
        self._dispatch()

    def _on_lost(self, link: HelperLink) -> None:
        """A helper has ended: by a limit, or because it kept too much memory."""
        if link not in self._links:
            return
        parent = self._parent
        lost = parent is None or parent.poll() is not None
        if self._closed or lost or not link.has_greeted:
            self._stop()
            return
        self._links.discard(link)
        if link.pending is not None:
            pending = link.take()
            job, exit_code = pending.job, link.exit_code
            error = job.limits(self._limits).too_much(job)
            if exit_code in NOT_THE_JOBS_FAULT:
                sentence = f"the process that did {job.work} was ended or got no CPU; try again"
                error = BatonError(Code.OVERLOADED, sentence, retry_after_ms=RETRY_SOON_MS)
            self._log.warning("helper.ended", job=type(job).__name__, exit_code=exit_code)
            _fail(pending, error)
        self._add_helper()

    def _stop_unless_ready(self, ready: asyncio.Future[None]) -> None:
        if not ready.done():
            self._stop()

    def _stop(self, sentence: str = "the helper processes stopped; try again") -> None:
        """All jobs fail; the next one starts another parent. Returns at once, because the processes
        have nothing to put in order."""
        links, self._links = self._links, set()
        pending = [link.take() for link in links if link.pending is not None]
        pending += [job for jobs in self._waiting.values() for job in jobs]
        self._waiting.clear()
        self._waiting_count = 0
        error = BatonError(Code.OVERLOADED, sentence, retry_after_ms=RETRY_SOON_MS)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
        if self._parent is not None and not self._closed:
            self._log.warning("helper.lost", sentence=sentence, pending=len(pending))
        self._ready = None
        for job in pending:
            _fail(job, error)
        for link in links:
            link.close()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._parent is not None:
            self._parent.kill()
            self._parent.wait()
            self._parent = None


class HelperLink:
    """The gateway's end of the socket to one helper."""

    def __init__(
        self,
        ours: socket.socket,
        on_report: Callable[[HelperLink, Report], None],
        on_lost: Callable[[HelperLink], None],
    ) -> None:
        #: The job that it does.
        self.pending: PendingJob | None = None
        self.has_greeted = False
        #: From its greeting until it says that it ends.
        self.takes_jobs = False
        #: How it ended, once that was told.
        self.exit_code: int | None = None
        self._loop = asyncio.get_running_loop()
        self._socket = ours
        self._on_report = on_report
        self._on_lost = on_lost
        self._unread = bytearray()
        self._unsent = memoryview(b"")
        self._loop.add_reader(ours.fileno(), self._read)

    @property
    def is_idle(self) -> bool:
        return self.takes_jobs and self.pending is None

    def give(self, pending: PendingJob) -> None:
        self.pending = pending
        frame = bytearray(LENGTH.size)
        encode_into(pending.job, frame, LENGTH.size)
        LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
        self._unsent = memoryview(frame)
        self._loop.add_writer(self._socket.fileno(), self._write)

    def take(self) -> PendingJob:
        pending, self.pending = self.pending, None
        assert pending is not None
        return pending

    def close(self) -> None:
        """Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # reading finds the end
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_lost(self)
            return
        unread = self._unread
        unread += data
        while len(unread) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(unread)[0]
            if len(unread) < end:
                return
            try:
                # An answer may have tens of MB, which are copied once.
                with memoryview(unread) as whole, whole[LENGTH.size : end] as payload:
                    report = report_decoder.decode(payload)
            except msgspec.MsgspecError:  # whoever waits for it must not wait for ever
                self.close()
                self._on_lost(self)
                return
            del unread[:end]
            self._on_report(self, report)


def _fail(pending: PendingJob, error: BatonError) -> None:
    if not pending.report.done():
        pending.report.set_exception(error)
        pending.report.exception()  # nobody may wait for it any more


def _spawn(command: list[str], setup: bytes) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Its output is discarded, because it could hold a client's text. Raises
    BatonError(OVERLOADED)."""
    try:
        with _pair() as (ours, theirs), os.fdopen(os.memfd_create("config"), "w+b") as file:
            file.write(setup)
            file.seek(0)
            socket.send_fds(ours, [b"c"], [file.fileno()])
            quiet = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=quiet, stderr=quiet)
    except OSError as error:
        sentence = f"the helper processes cannot be started: {error.strerror or error}; try again"
        raise BatonError(Code.OVERLOADED, sentence, retry_after_ms=RETRY_SOON_MS) from error
    return process, ours


@contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end, which does not block and stays open unless the block raises, and theirs, which is
    closed after it. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            ours.setblocking(False)
            yield ours, theirs
        except BaseException:
            ours.close()
            raise

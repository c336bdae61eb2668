"""The gateway's side of grammar compilation: it sends grammars, waits, and remembers the reports.

The compiling process (`compiler_process.py`) is started when it is first needed, and again after it
was lost. At most `COMPILING_MAX` grammars compile at a time and `WAITING_MAX` wait; the next one is
refused for now. All this happens before the router counts anything, so each key has a bound of its
own here, which leaves room for the grammars of others. A report is remembered by the grammar's
digest. That of a grammar that took too long is remembered for a while only, because a busy machine
is slow too. Nothing here blocks the loop or imports vLLM.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import xxhash

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from common.messages import Structured
from common.telemetry.log import Logger
from services.gateway.api.bounds import PARAM
from services.gateway.auth.caller import Caller
from services.gateway.grammar.compiler_process import (
    CompileJob,
    CompileOutcome,
    CompileReport,
    CompilerMessage,
    Ready,
)
from services.gateway.requests.refusals import RETRY_SOON_MS

COMMAND = (sys.executable, "-m", "services.gateway.grammar.compiler_process")
COMPILING_MAX = 2
WAITING_MAX = 64
REPORTS_MAX = 2_048
FOREVER = float("inf")
TOO_SLOW_SECONDS = 60.0
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class PendingGrammar:
    """A grammar that waits or compiles. Further requests with the same grammar wait with it and
    count for no key."""

    digest: bytes
    #: Of the request that it came with first; empty for an anonymous caller.
    key_id: str
    report: asyncio.Future[CompileReport]


class GrammarPool:
    """`command` starts the compiling process."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        log: Logger,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._setup = msgspec.json.encode(config) + b"\n"
        self._limits = config.gateway.limits
        self._clock = clock
        self._log = log
        self._command = list(command)
        self._link: CompilerLink | None = None
        self._closed = False
        self._connecting = asyncio.Lock()
        #: Jobs so far; the number of the latest.
        self._jobs = 0
        #: Jobs that the process has yet to be given.
        self._waiting: deque[CompileJob] = deque()
        #: Numbers of the jobs that the process has.
        self._compiling: set[int] = set()
        #: All grammars without a report, by digest.
        self._pending: dict[bytes, PendingGrammar] = {}
        #: The digest of each pending grammar, by the number of its job.
        self._digests: dict[int, bytes] = {}
        #: Reports by digest, each with the instant until which it holds.
        self._reports: OrderedDict[bytes, tuple[CompileReport, float]] = OrderedDict()

    @property
    def pid(self) -> int | None:
        """Of the compiling process; None while there is none."""
        return self._link.process.pid if self._link is not None else None

    async def check(self, structured: Structured, caller: Caller) -> None:
        """Returns if the grammar compiles. Raises BatonError: INVALID_REQUEST if it does not, or
        not within the limits; RATE_LIMITED while the caller's key has too many new grammars, and
        OVERLOADED while all keys together have."""
        digest = xxhash.xxh3_128_digest(msgspec.msgpack.encode(structured))
        report = self._remembered(digest)
        if report is None:
            await self._connect()
            report = await asyncio.shield(self._enqueue(digest, structured, caller.key_id))
        if report.outcome is not CompileOutcome.GOOD:
            raise self._refusal(report)

    def close(self) -> None:
        self._closed = True
        if self._link is not None:
            self._link.kill()

    def _enqueue(
        self, digest: bytes, structured: Structured, key_id: str
    ) -> asyncio.Future[CompileReport]:
        known = self._pending.get(digest)
        if known is not None:
            return known.report
        self._check_room(key_id)
        self._jobs += 1
        pending = PendingGrammar(digest, key_id, asyncio.get_running_loop().create_future())
        self._pending[digest] = pending
        self._digests[self._jobs] = digest
        self._waiting.append(CompileJob(self._jobs, structured))
        self._send()
        return pending.report

    def _check_room(self, key_id: str) -> None:
        most = self._limits.grammars_per_key_max
        if key_id and sum(pending.key_id == key_id for pending in self._pending.values()) >= most:
            raise BatonError(
                Code.RATE_LIMITED,
                f"{most} new grammars of this key are being compiled or wait for it "
                "(gateway.limits.grammars_per_key_max); try again",
                retry_after_ms=RETRY_SOON_MS,
            )
        if len(self._waiting) >= WAITING_MAX:
            raise BatonError(
                Code.OVERLOADED,
                f"{WAITING_MAX} grammars wait to be compiled; try again",
                retry_after_ms=RETRY_SOON_MS,
            )

    def _send(self) -> None:
        link = self._link
        if link is None or not link.ready:
            return
        while self._waiting and len(self._compiling) < COMPILING_MAX:
            job = self._waiting.popleft()
            self._compiling.add(job.number)
            link.write(msgspec.json.encode(job) + b"\n")

    def _refusal(self, report: CompileReport) -> BatonError:
        limits = self._limits
        sentence = {
            CompileOutcome.TOO_SLOW: f"it does not compile within {limits.grammar_ms_max:.0f} ms "
            "(gateway.limits.grammar_ms_max)",
            CompileOutcome.DIED: f"it does not compile within {limits.grammar_mib_max} MiB "
            "(gateway.limits.grammar_mib_max), or breaks the compiler",
        }.get(report.outcome, report.reason)
        return BatonError(Code.INVALID_REQUEST, f"{PARAM}: {sentence}", param=PARAM)

    def _remembered(self, digest: bytes) -> CompileReport | None:
        report, until = self._reports.get(digest, (None, 0.0))
        if report is None or until <= self._clock.monotonic():
            return None
        self._reports.move_to_end(digest)
        return report

    # ------------------------------------------------------------ the process

    async def _connect(self) -> None:
        async with self._connecting:
            if self._link is not None:
                return
            process, ours = _spawn(self._command)
            link = CompilerLink(process, self._on_message, self._on_lost)
            loop = asyncio.get_running_loop()
            try:
                await loop.create_unix_connection(lambda: link, sock=ours)
            except BaseException:
                ours.close()
                link.kill()
                raise
            self._link = link
            link.write(self._setup)
            loop.call_later(START_SECONDS, link.kill_unless_ready)

    def _on_message(self, message: CompilerMessage) -> None:
        if isinstance(message, Ready):
            if message.error:
                sentence = f"grammars cannot be compiled here: {message.error}"
                self._log.error("grammar_compiler.failed", sentence=sentence)
            self._send()
            return
        self._compiling.discard(message.number)
        digest = self._digests.pop(message.number)
        until = FOREVER
        if message.outcome is CompileOutcome.TOO_SLOW:
            until = self._clock.monotonic() + TOO_SLOW_SECONDS
        self._reports[digest] = message, until
        if len(self._reports) > REPORTS_MAX:
            self._reports.popitem(last=False)
        self._pending.pop(digest).report.set_result(message)
        self._send()

    def _on_lost(self) -> None:
        """All pending grammars fail; the next one starts another process."""
        self._link = None
        lost = [pending.report for pending in self._pending.values()]
        self._pending.clear()
        self._digests.clear()
        self._waiting.clear()
        self._compiling.clear()
        sentence = "the grammar compiler stopped; try again"
        if not self._closed:
            self._log.warning("grammar_compiler.lost", sentence=sentence, pending=len(lost))
        for report in lost:
            error = BatonError(Code.OVERLOADED, sentence, retry_after_ms=RETRY_SOON_MS)
            report.set_exception(error)
            report.exception()  # nobody may wait for it any more


class CompilerLink(asyncio.Protocol):
    """The gateway's end of the socket to the compiling process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        on_message: Callable[[CompilerMessage], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.process = process
        self.ready = False
        self._on_message = on_message
        self._on_lost = on_lost
        self._unread = b""
        self._transport: asyncio.WriteTransport | None = None
        self._decoder: msgspec.json.Decoder[CompilerMessage] = msgspec.json.Decoder(CompilerMessage)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message = self._decoder.decode(line)
            self.ready = self.ready or (isinstance(message, Ready) and not message.error)
            self._on_message(message)

    def connection_lost(self, _error: Exception | None) -> None:
        self.kill()
        self._on_lost()

    def kill_unless_ready(self) -> None:
        if not self.ready:
            self.kill()

    def kill(self) -> None:
        """Idempotent. Returns at once, because the process has nothing to put in order."""
        self.process.kill()
        self.process.wait()
        if self._transport is not None:
            self._transport.close()


def _spawn(command: list[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Its output is discarded, because it could hold a client's text."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=quiet, stderr=quiet)
        return process, ours

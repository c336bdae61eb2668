"""The gateway's side of grammar compilation: asks, waits, remembers.

The compiling process (`grammar_child.py`) is started when first needed and again when it was lost.
At most `AT_ONCE` grammars are compiled at a time, `WAITING_MAX` wait, the next is told to come
back. All this is before the router counts anything, so a key has a bound of its own here: however
many new grammars it sends, others' still have room. A judgement is remembered by the grammar's
digest; one of a grammar that took too long, for a while only, since a busy machine is slow too.
Nothing here blocks the loop or imports vLLM.
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
from common.log import Logger
from common.messages import Structured
from services.gateway.api.bounds import PARAM
from services.gateway.auth.caller import Caller
from services.gateway.refusals import RETRY_SOON_MS
from services.gateway.vllm_api.grammar_child import Answer, Job, Judged, Ready, Verdict

COMMAND = (sys.executable, "-m", "services.gateway.vllm_api.grammar_child")
AT_ONCE = 2
WAITING_MAX = 64
REMEMBERED_MAX = 2_048
FOR_GOOD = float("inf")
TOO_SLOW_SECONDS = 60.0
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A grammar that waits or compiles. `key_id`: of the request it came with first, empty = none;
    those that ask for the same meanwhile wait with it and cost nothing."""

    digest: bytes
    key_id: str
    judged: asyncio.Future[Judged]


class Grammars:
    """`command`: the compiling process."""

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
        self._link: Link | None = None
        self._closed = False
        self._connecting = asyncio.Lock()
        self._numbers = 0
        self._waiting: deque[Job] = deque()
        self._sent: set[int] = set()
        self._asked: dict[bytes, Asked] = {}
        self._digests: dict[int, bytes] = {}
        self._known: OrderedDict[bytes, tuple[Judged, float]] = OrderedDict()

    @property
    def pid(self) -> int | None:
        """Of the compiling process, once there is one."""
        return self._link.process.pid if self._link is not None else None

    async def check(self, structured: Structured, caller: Caller) -> None:
        """Returns for what compiles. Raises BatonError: INVALID_REQUEST for what does not, or not
        within the limits; RATE_LIMITED while the caller's key has too many, OVERLOADED while all
        have."""
        digest = xxhash.xxh3_128_digest(msgspec.msgpack.encode(structured))
        judged = self._remembered(digest)
        if judged is None:
            await self._connect()
            judged = await asyncio.shield(self._ask(digest, structured, caller.key_id))
        if judged.verdict is not Verdict.GOOD:
            raise self._refusal(judged)

    def close(self) -> None:
        self._closed = True
        if self._link is not None:
            self._link.kill()

    def _ask(self, digest: bytes, structured: Structured, key_id: str) -> asyncio.Future[Judged]:
        known = self._asked.get(digest)
        if known is not None:
            return known.judged
        self._bound(key_id)
        self._numbers += 1
        asked = Asked(digest, key_id, asyncio.get_running_loop().create_future())
        self._asked[digest] = asked
        self._digests[self._numbers] = digest
        self._waiting.append(Job(self._numbers, structured))
        self._send()
        return asked.judged

    def _bound(self, key_id: str) -> None:
        most = self._limits.grammars_per_key_max
        if key_id and sum(asked.key_id == key_id for asked in self._asked.values()) >= most:
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
        while link is not None and link.ready and self._waiting and len(self._sent) < AT_ONCE:
            job = self._waiting.popleft()
            self._sent.add(job.number)
            link.write(msgspec.json.encode(job) + b"\n")

    def _refusal(self, judged: Judged) -> BatonError:
        limits = self._limits
        sentence = {
            Verdict.TOO_SLOW: f"it does not compile within {limits.grammar_ms_max:.0f} ms "
            "(gateway.limits.grammar_ms_max)",
            Verdict.DIED: f"it does not compile within {limits.grammar_mib_max} MiB "
            "(gateway.limits.grammar_mib_max), or breaks the compiler",
        }.get(judged.verdict, judged.reason)
        return BatonError(Code.INVALID_REQUEST, f"{PARAM}: {sentence}", param=PARAM)

    def _remembered(self, digest: bytes) -> Judged | None:
        judged, until = self._known.get(digest, (None, 0.0))
        if judged is None or until <= self._clock.monotonic():
            return None
        self._known.move_to_end(digest)
        return judged

    # ------------------------------------------------------------ the process

    async def _connect(self) -> None:
        async with self._connecting:
            if self._link is not None:
                return
            process, ours = _spawn(self._command)
            link = Link(process, self._heard, self._lost)
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

    def _heard(self, answer: Answer) -> None:
        if isinstance(answer, Ready):
            if answer.error:
                sentence = f"grammars cannot be compiled here: {answer.error}"
                self._log.error("grammars.unusable", sentence=sentence)
            self._send()
            return
        self._sent.discard(answer.number)
        digest = self._digests.pop(answer.number)
        seconds = FOR_GOOD
        if answer.verdict is Verdict.TOO_SLOW:
            seconds = self._clock.monotonic() + TOO_SLOW_SECONDS
        self._known[digest] = answer, seconds
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        self._asked.pop(digest).judged.set_result(answer)
        self._send()

    def _lost(self) -> None:
        """All that was asked fails; the next to ask starts another process."""
        self._link = None
        lost = [asked.judged for asked in self._asked.values()]
        self._asked.clear()
        self._digests.clear()
        self._waiting.clear()
        self._sent.clear()
        sentence = "the grammar compiler stopped; try again"
        if not self._closed:
            self._log.warning("grammars.lost", sentence=sentence, waiting=len(lost))
        for judged in lost:
            error = BatonError(Code.OVERLOADED, sentence, retry_after_ms=RETRY_SOON_MS)
            judged.set_exception(error)
            judged.exception()  # whoever waited may have left


class Link(asyncio.Protocol):
    """The line to the compiling process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        heard: Callable[[Answer], None],
        lost: Callable[[], None],
    ) -> None:
        self.process = process
        self.ready = False
        self._heard = heard
        self._lost = lost
        self._unread = b""
        self._transport: asyncio.WriteTransport | None = None
        self._answer: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Ready | Judged)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            answer = self._answer.decode(line)
            self.ready = self.ready or (isinstance(answer, Ready) and not answer.error)
            self._heard(answer)

    def connection_lost(self, _error: Exception | None) -> None:
        self.kill()
        self._lost()

    def kill_unless_ready(self) -> None:
        if not self.ready:
            self.kill()

    def kill(self) -> None:
        """Idempotent. It has nothing to put in order, so that it is gone at once."""
        self.process.kill()
        self.process.wait()
        if self._transport is not None:
            self._transport.close()


def _spawn(command: list[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """What it prints is not kept: it could hold a client's words."""
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=quiet, stderr=quiet)
        return process, ours

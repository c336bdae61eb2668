"""The process that compiles grammars, so that none can stall, bloat or crash a gateway.

Theory of operation: what a client's schema or regex costs to compile cannot be told from its text.
This process imports vLLM's structured output code once, with the model's tokenizer, and then only
waits: each grammar is compiled in a fork of it, in which a time limit (SIGKILL), a memory limit and
a crash of native code harm nothing else, and which needs no import again. Jobs come and judgements
go as JSON lines on the socket that is its standard input; at its end, the process ends.
"""

from __future__ import annotations

import enum
import os
import resource
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from common.clock import Clock, SystemClock
from common.config import Config
from common.messages import Structured

READ_BYTES = 1 << 16
REASON_CHARS_MAX = 400
COMPILER_THREADS = 8
"""Of xgrammar as vLLM uses it; CPU seconds may be so many times those of the clock."""

Compile = Callable[[Structured], None]


class Verdict(enum.StrEnum):
    GOOD = "good"
    INVALID = "invalid"
    TOO_SLOW = "too_slow"
    DIED = "died"


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The first line from this process; the first to it is the configuration. `error`: it cannot
    work here and ends."""

    error: str = ""


class Job(msgspec.Struct, frozen=True):
    number: int
    structured: Structured


class Judged(msgspec.Struct, frozen=True, tag="judged"):
    """`reason`: of `invalid`, a sentence for the client."""

    number: int
    verdict: Verdict
    reason: str = ""


Answer = Ready | Judged


@dataclass(frozen=True, slots=True)
class Fork:
    """`pipe`: its judgement comes there, or the end if it died. `until`: instant."""

    pid: int
    pipe: int
    number: int
    until: float


class Nursery:
    """Forks for each job; never runs one itself."""

    def __init__(self, line: socket.socket, compile_: Compile, config: Config, clock: Clock):
        self._line = line
        self._compile = compile_
        self._seconds_max = config.gateway.limits.grammar_ms_max / 1000
        self._bytes_max = config.gateway.limits.grammar_mib_max << 20
        self._clock = clock
        self._forks: dict[int, Fork] = {}
        self._unread = b""
        self._job = msgspec.json.Decoder(Job)

    def serve(self) -> None:
        """Until the other side is gone."""
        try:
            while self._step():
                pass
        finally:
            for fork in list(self._forks.values()):
                self._end(fork)

    def _step(self) -> bool:
        nearest = min((fork.until for fork in self._forks.values()), default=None)
        left = None if nearest is None else max(0.0, nearest - self._clock.monotonic())
        line = self._line.fileno()
        ready, _, _ = select.select([line, *self._forks], [], [], left)
        for each in ready:
            if each != line:
                self._finished(self._forks[each])
            elif not self._read():
                return False
        now = self._clock.monotonic()
        for fork in [fork for fork in self._forks.values() if fork.until <= now]:
            self._end(fork)
            self._say(Judged(fork.number, Verdict.TOO_SLOW))
        return True

    def _read(self) -> bool:
        data = self._line.recv(READ_BYTES)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._start(self._job.decode(line))
        return bool(data)

    def _start(self, job: Job) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._run(job, writing)
        os.close(writing)
        until = self._clock.monotonic() + self._seconds_max
        self._forks[reading] = Fork(pid, reading, job.number, until)

    def _run(self, job: Job, pipe: int) -> NoReturn:
        """In the fork."""
        try:
            limit_process(self._bytes_max, self._seconds_max)
            os.write(pipe, msgspec.json.encode(self._judged(job)))
        finally:
            os._exit(0)

    def _judged(self, job: Job) -> Judged:
        try:
            self._compile(job.structured)
        except MemoryError:
            return Judged(job.number, Verdict.DIED)
        except Exception as error:  # noqa: BLE001 - whatever native code makes of it
            return Judged(job.number, Verdict.INVALID, reason_of(error))
        return Judged(job.number, Verdict.GOOD)

    def _finished(self, fork: Fork) -> None:
        told = os.read(fork.pipe, READ_BYTES)
        self._end(fork)
        died = Judged(fork.number, Verdict.DIED)
        self._say(msgspec.json.decode(told, type=Judged) if told else died)

    def _end(self, fork: Fork) -> None:
        del self._forks[fork.pipe]
        os.kill(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)
        os.close(fork.pipe)

    def _say(self, answer: Answer) -> None:
        self._line.sendall(msgspec.json.encode(answer) + b"\n")


def limit_process(more_bytes: int, seconds: float) -> None:
    """The memory that this process may add, and CPU time should nobody be left to kill it."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    most = int(fields["VmData"].split()[0]) * 1024 + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    cpu = int(seconds * COMPILER_THREADS) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def reason_of(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:REASON_CHARS_MAX]


def vllm_compiler(config: Config) -> Compile:
    """Checks and compiles as vLLM does on a worker: the same validators choose the backend, with
    the same options. Raises what vLLM raises."""
    from vllm import SamplingParams
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend
    from vllm.v1.structured_output.backend_outlines import OutlinesBackend
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
    from vllm.v1.structured_output.request import get_structured_output_key

    from common.engine.vllm_sampling import structured_params
    from common.model.resolve import resolve_model
    from services.gateway.vllm_api.build import vllm_config

    made = vllm_config(config, resolve_model(config.model.path))
    tokenizer = cached_tokenizer_from_config(model_config=made.model_config)
    about = {"tokenizer": tokenizer, "vocab_size": made.model_config.get_vocab_size()}
    xgrammar = XgrammarBackend(made, **about)
    others = {"guidance": GuidanceBackend, "outlines": OutlinesBackend}

    def compile_(structured: Structured) -> None:
        params = SamplingParams(structured_outputs=structured_params(structured))
        params.verify(made.model_config, None, made.structured_outputs_config, tokenizer)
        asked = params.structured_outputs
        other = others.get(asked._backend)  # noqa: SLF001 - as vLLM's own engine core reads it
        backend = other(made, **about) if other is not None else xgrammar
        backend.compile_grammar(*get_structured_output_key(asked))

    return compile_


def serve(line: socket.socket, make: Callable[[Config], Compile]) -> None:
    """Reads the configuration, says whether it can work, and works."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the gateway's to hear
    with line.makefile("rb") as lines:
        config = msgspec.json.decode(lines.readline(), type=Config)
    try:
        compile_ = make(config)
    except Exception as error:  # noqa: BLE001 - told to the gateway, whatever it is
        line.sendall(msgspec.json.encode(Ready(reason_of(error))) + b"\n")
        return
    line.sendall(msgspec.json.encode(Ready()) + b"\n")
    Nursery(line, compile_, config, SystemClock()).serve()


def main() -> None:
    from common.config import EngineConfig
    from common.engine.vllm_args import prepare_process

    prepare_process(EngineConfig(threads=1), 1)
    serve(socket.socket(fileno=0), vllm_compiler)


if __name__ == "__main__":
    main()

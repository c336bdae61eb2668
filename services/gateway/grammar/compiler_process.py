"""The process that compiles grammars, so that none can stall, bloat or crash a gateway.

Theory of operation: nothing in the text of a schema or regex tells what it costs to compile. This
process imports vLLM's structured output code once, with the model's tokenizer, and then only waits.
Each grammar is compiled in a fork of it. A time limit (SIGKILL), a memory limit and a crash of
native code harm nothing but that fork, and a fork need not import anything again. Jobs come and
reports go as JSON lines on the socket that is the standard input; the process ends with it.
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
#: Of xgrammar as vLLM uses it: a job may take so many times its time limit in CPU seconds.
COMPILER_THREADS = 8

Compile = Callable[[Structured], None]


class CompileOutcome(enum.StrEnum):
    """How a grammar's compilation ended."""

    GOOD = "good"
    #: The validators or the compiler refused it.
    INVALID = "invalid"
    #: The time limit passed.
    TOO_SLOW = "too_slow"
    #: The memory limit, or a crash, ended the fork.
    DIED = "died"


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The first line from this process. The first line to it is the configuration."""

    #: Why it cannot compile anything here, and ends; empty if it can.
    error: str = ""


class CompileJob(msgspec.Struct, frozen=True):
    number: int
    structured: Structured


class CompileReport(msgspec.Struct, frozen=True, tag="report"):
    """`number`: of its job."""

    number: int
    outcome: CompileOutcome
    #: A sentence for the client; empty unless the outcome is INVALID.
    reason: str = ""


CompilerMessage = Ready | CompileReport


@dataclass(frozen=True, slots=True)
class Fork:
    """A job under way."""

    pid: int
    #: It writes its report there; the end of the file without one means that it died.
    pipe: int
    #: Of the job.
    number: int
    #: When it is killed: seconds, monotonic.
    until: float


class ForkServer:
    """Starts a fork for each job and runs none itself. `line`: the socket to the gateway."""

    def __init__(self, line: socket.socket, compile_: Compile, config: Config, clock: Clock):
        self._line = line
        self._compile = compile_
        self._seconds_max = config.gateway.limits.grammar_ms_max / 1000
        self._bytes_max = config.gateway.limits.grammar_mib_max << 20
        self._clock = clock
        self._forks: dict[int, Fork] = {}
        self._unread = b""
        self._job = msgspec.json.Decoder(CompileJob)

    def serve(self) -> None:
        """Returns when the gateway is gone."""
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
        for descriptor in ready:
            if descriptor != line:
                self._finished(self._forks[descriptor])
            elif not self._read():
                return False
        now = self._clock.monotonic()
        for fork in [fork for fork in self._forks.values() if fork.until <= now]:
            self._end(fork)
            self._send(CompileReport(fork.number, CompileOutcome.TOO_SLOW))
        return True

    def _read(self) -> bool:
        data = self._line.recv(READ_BYTES)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._start(self._job.decode(line))
        return bool(data)

    def _start(self, job: CompileJob) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._run(job, writing)
        os.close(writing)
        until = self._clock.monotonic() + self._seconds_max
        self._forks[reading] = Fork(pid, reading, job.number, until)

    def _run(self, job: CompileJob, pipe: int) -> NoReturn:
        """In the fork, which must not hold the line open: the gateway hears of the loss of this
        process by its end."""
        self._line.close()
        try:
            limit_process(self._bytes_max, self._seconds_max)
            os.write(pipe, msgspec.json.encode(self._report(job)))
        finally:
            os._exit(0)

    def _report(self, job: CompileJob) -> CompileReport:
        try:
            self._compile(job.structured)
        except MemoryError:
            return CompileReport(job.number, CompileOutcome.DIED)
        except Exception as error:  # noqa: BLE001 - native code may raise anything
            return CompileReport(job.number, CompileOutcome.INVALID, reason_of(error))
        return CompileReport(job.number, CompileOutcome.GOOD)

    def _finished(self, fork: Fork) -> None:
        written = os.read(fork.pipe, READ_BYTES)
        self._end(fork)
        died = CompileReport(fork.number, CompileOutcome.DIED)
        self._send(msgspec.json.decode(written, type=CompileReport) if written else died)

    def _end(self, fork: Fork) -> None:
        del self._forks[fork.pipe]
        os.kill(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)
        os.close(fork.pipe)

    def _send(self, message: CompilerMessage) -> None:
        self._line.sendall(msgspec.json.encode(message) + b"\n")


def limit_process(more_bytes: int, seconds: float) -> None:
    """Bounds the memory that this process may add, and its CPU time in case nobody is left to kill
    it."""
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
    """Checks and compiles as vLLM does on a worker: the same validators choose the same backend
    with the same options. What it returns raises what vLLM raises."""
    from vllm import SamplingParams
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend
    from vllm.v1.structured_output.backend_outlines import OutlinesBackend
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
    from vllm.v1.structured_output.request import get_structured_output_key

    from common.engine.vllm.sampling import structured_params
    from common.model.resolve import resolve_model
    from services.gateway.full_api.vllm.build import vllm_config

    made = vllm_config(config, resolve_model(config.model.path))
    tokenizer = cached_tokenizer_from_config(model_config=made.model_config)
    about = {"tokenizer": tokenizer, "vocab_size": made.model_config.get_vocab_size()}
    xgrammar = XgrammarBackend(made, **about)
    others = {"guidance": GuidanceBackend, "outlines": OutlinesBackend}

    def compile_(structured: Structured) -> None:
        params = SamplingParams(structured_outputs=structured_params(structured))
        params.verify(made.model_config, None, made.structured_outputs_config, tokenizer)
        checked = params.structured_outputs
        other = others.get(checked._backend)  # noqa: SLF001 - as vLLM's own engine core reads it
        backend = other(made, **about) if other is not None else xgrammar
        backend.compile_grammar(*get_structured_output_key(checked))

    return compile_


def serve(line: socket.socket, make: Callable[[Config], Compile]) -> None:
    """Reads the configuration, reports whether grammars can be compiled here, and compiles them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the gateway
    with line.makefile("rb") as lines:
        config = msgspec.json.decode(lines.readline(), type=Config)
    try:
        compile_ = make(config)
    except Exception as error:  # noqa: BLE001 - reported to the gateway, whatever it is
        line.sendall(msgspec.json.encode(Ready(reason_of(error))) + b"\n")
        return
    line.sendall(msgspec.json.encode(Ready()) + b"\n")
    ForkServer(line, compile_, config, SystemClock()).serve()


def main() -> None:
    from common.config import EngineConfig
    from common.engine.vllm.args import prepare_process

    prepare_process(EngineConfig(threads=1), 1)
    serve(socket.socket(fileno=0), vllm_compiler)


if __name__ == "__main__":
    main()

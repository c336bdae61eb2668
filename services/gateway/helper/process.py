"""The processes that do what may be expensive, so that no request can stall, bloat or crash a
gateway.

Theory of operation: nothing in a request tells what it costs to check it or to compile its grammar.
The parent imports the text classes once, with the model's tokenizer, and then only forks: one
helper for each socket that the gateway passes to it. A helper does one job after the other. Before
each it asks the kernel to end it when the job takes too much wall time, CPU time or memory, so that
native code is bounded too and nobody need be left to kill it. The gateway notices the end of the
socket and passes another one. A helper that has kept much memory ends by itself. All end with the
gateway, which closes its ends.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from common.config import Config
from common.errors import BatonError, Code
from services.gateway.helper.jobs import (
    Greeting,
    Job,
    JobLimits,
    Leaving,
    OutOfMemory,
    Refusal,
    Result,
    Unusable,
    encode,
    job_decoder,
)

LENGTH = struct.Struct("!I")
REASON_CHARS_MAX = 400
#: Memory that a helper may have gained before it makes room for a fresh one.
KEPT_BYTES_MAX = 64 << 20
#: The loop that carries streams comes first.
NICE = 5

#: Does a job. Raises BatonError for what the client did wrong, and MemoryError.
Work = Callable[[Job], Result]


def reason_of(error: Exception) -> str:
    """The first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:REASON_CHARS_MAX]


class Helper:
    """One fork. `line`: its socket to the gateway."""

    def __init__(self, line: socket.socket, work: Work, config: Config) -> None:
        self._line = line
        self._work = work
        self._limits = config.gateway.limits
        self._data_bytes = _status_bytes("VmData")
        self._memory_bytes = _status_bytes("RssAnon")

    def serve(self) -> None:
        """Returns when the gateway is gone, or this process has become too large."""
        send(self._line, encode(Greeting(os.getpid())))
        while (job := self._receive()) is not None:
            self._limit(job.limits(self._limits))
            payload = encode(self._report(job))
            self._limit(JobLimits(0.0, 0.0, resource.RLIM_INFINITY))
            del job
            kept = _status_bytes("RssAnon") - self._memory_bytes - len(payload)
            if kept > KEPT_BYTES_MAX:
                send(self._line, encode(Leaving()))
            send(self._line, payload)
            if kept > KEPT_BYTES_MAX:
                return

    def _report(self, job: Job) -> Result:
        try:
            return self._work(job)
        except MemoryError:
            return OutOfMemory()
        except BatonError as error:
            return Refusal(error.code, error.message, error.param)
        except Exception as error:  # noqa: BLE001 - native code and foreign classes may raise anything
            sentence = f"this request cannot be checked ({type(error).__name__})"
            return Refusal(Code.INVALID_REQUEST, sentence)

    def _limit(self, limits: JobLimits) -> None:
        """The default action of both signals ends the process. Zero disarms a timer."""
        signal.setitimer(signal.ITIMER_REAL, limits.wall_seconds)
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_seconds)
        most = limits.memory_bytes
        if most != resource.RLIM_INFINITY:
            most += self._data_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))

    def _receive(self) -> Job | None:
        """None at the end of the socket."""
        body = receive(self._line)
        return job_decoder.decode(body) if body else None


def send(line: socket.socket, payload: bytes) -> None:
    """`payload`: a report."""
    line.sendall(LENGTH.pack(len(payload)) + payload)


def receive(line: socket.socket) -> bytes:
    """One message; empty at the end of the socket."""
    head = _read(line, LENGTH.size)
    return _read(line, LENGTH.unpack(head)[0]) if head else b""


def _read(line: socket.socket, size: int) -> bytes:
    """Exactly so many bytes, since descriptors may come with the next; empty at the end."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = line.recv_into(view[done:])
        if not got:
            return b""
        done += got
    return bytes(data)


def _status_bytes(name: str) -> int:
    """A line of this process's status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def _fork(control: socket.socket, line: socket.socket, work: Work, config: Config) -> None:
    if os.fork():
        line.close()
        return
    _run(control, line, work, config)


def _run(control: socket.socket, line: socket.socket, work: Work, config: Config) -> NoReturn:
    """In the fork."""
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.nice(NICE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        Helper(line, work, config).serve()
    except (ConnectionError, BrokenPipeError):
        pass  # the gateway is gone
    finally:
        os._exit(0)


def serve(control: socket.socket, make: Callable[[Config], Work]) -> None:
    """Reads the configuration, loads what the work needs, and forks a helper for each socket that
    comes. Returns when the gateway is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the gateway
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    config = msgspec.msgpack.decode(receive(control), type=Config)
    reason, work = "", None
    try:
        work = make(config)
    except Exception as error:  # noqa: BLE001 - reported to the gateway, whatever it is
        reason = reason_of(error)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        line = socket.socket(fileno=descriptors[0])
        if work is None:
            send(line, encode(Unusable(reason)))
            return
        _fork(control, line, work, config)


def main() -> None:
    from services.gateway.helper import work

    serve(socket.socket(fileno=0), work.vllm if sys.argv[1] == "vllm" else work.light)


if __name__ == "__main__":
    main()

"""The processes that do what may be expensive, so that no request can stall, bloat or crash a
gateway.

Theory of operation: nothing in a request tells what it costs to check it or to compile its grammar.
The parent imports the text classes once, with the model's tokenizer, and then only forks: one
helper for each socket that the gateway passes to it. A helper does one job after the other. Before
each it asks the kernel to end it when the job takes too much CPU time or memory, so that native
code is bounded too and nobody need be left to kill it. It also ends when it had too little of the
CPU for long, which is the host's fault and not the request's. So each helper has a process that
waits for its end and tells the gateway the cause. The gateway then passes another socket. A helper
that has kept much memory ends by itself. All end with the gateway, which closes its ends.
"""

from __future__ import annotations

import gc
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
    Ended,
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
#: Wall time of a job: so many times its CPU time, since the machine is shared.
WALL_FACTOR = 10.0
#: Of an error's sentence: those of foreign classes may repeat what the client sent.
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
    return _short(lines[0] if lines else type(error).__name__)


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= REASON_CHARS_MAX else f"{sentence[:REASON_CHARS_MAX]}..."


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
            payload = self._report(job)
            self._limit(None)
            del job
            kept = _status_bytes("RssAnon") - self._memory_bytes - len(payload)
            if kept > KEPT_BYTES_MAX:
                send(self._line, encode(Leaving()))
            send(self._line, payload)
            if kept > KEPT_BYTES_MAX:
                return

    def _report(self, job: Job) -> bytes:
        try:
            return encode(self._work(job))
        except MemoryError:
            return encode(OutOfMemory())
        except BatonError as error:
            param = error.param and _short(error.param)
            return encode(Refusal(error.code, _short(error.message), param))
        except Exception as error:  # noqa: BLE001 - native code and foreign classes may raise anything
            sentence = f"this request cannot be checked ({type(error).__name__})"
            return encode(Refusal(Code.INVALID_REQUEST, sentence))

    def _limit(self, limits: JobLimits | None) -> None:
        """The default action of both signals ends the process. Zero disarms a timer."""
        seconds, most = 0.0, resource.RLIM_INFINITY
        if limits is not None:
            seconds = limits.cpu_ms / 1000
            most = self._data_bytes + (limits.memory_mib << 20)
        signal.setitimer(signal.ITIMER_REAL, seconds * WALL_FACTOR)
        signal.setitimer(signal.ITIMER_PROF, seconds)
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
    """In the fork, which waits for the helper's end."""
    try:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        helper = os.fork()
        if helper:
            _, status = os.waitpid(helper, 0)
            send(line, encode(Ended(os.waitstatus_to_exitcode(status))))
        else:
            Helper(line, work, config).serve()
    except (ConnectionError, BrokenPipeError):
        pass  # the gateway is gone
    finally:
        os._exit(0)


def serve(control: socket.socket, make: Callable[[Config], Work]) -> None:
    """Reads the configuration from the file that comes first, loads what the work needs, and forks
    a helper for each socket that comes. Returns when the gateway is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the gateway
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    os.nice(NICE)
    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    with os.fdopen(descriptors[0], "rb") as file:
        config = msgspec.msgpack.decode(file.read(), type=Config)
    reason, work = "", None
    try:
        work = make(config)
    except Exception as error:  # noqa: BLE001 - reported to the gateway, whatever it is
        reason = reason_of(error)
    gc.collect()
    gc.freeze()  # so that no helper visits, and by that copies, what it has from here
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

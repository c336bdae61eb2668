"""The process that `baton up` forks its vLLM workers off: it imports vLLM once for all of them.

Theory of operation: `services/up/fork_client.py` starts it with the environment that the workers
have, and with one end of a socket as its standard input. It imports vLLM (seconds) and greets. Each
request then is one byte with three descriptors: what the worker is told, its log, and a pipe. The
worker is to be a child of `baton up`. So this process forks a process that forks the worker and
ends, which leaves the worker to `baton up`, the subreaper meanwhile. Its id is the answer. The
worker waits at the pipe for the word that `baton up` has it; else it ends and has done nothing.

There is one Python thread here and no event loop. Of Baton's own code next to nothing is loaded
before the fork, so that a worker that is restarted runs what is installed by then. This process
ends with `baton up`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Mapping

import msgspec

from common.process.fork_request import GO, GREETING, PID, UNFIT, Start

PR_SET_PDEATHSIG = 1


def serve(control: socket.socket) -> Start | None:
    """Returns in each worker what that is told, and None when `baton up` is gone."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if not request:
            return None
        start, log, go = descriptors
        worker = _fork_twice()
        if worker == 0:
            return _begin(control, start, log, go)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(PID.pack(worker or 0))


def _fork_twice() -> int | None:
    """Returns 0 in the worker, and its process id here; None if it could not be forked."""
    reader, writer = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            worker = _fork_or_exit()
            if worker == 0:
                return 0
            os.write(writer, PID.pack(worker))
            os._exit(0)
        os.waitpid(middle, 0)
        os.set_blocking(reader, False)
        return int(PID.unpack(os.read(reader, PID.size))[0])
    except OSError:  # no process is left; the pipe is empty then
        return None
    finally:
        os.close(reader)
        os.close(writer)


def _fork_or_exit() -> int:
    """In the process between."""
    try:
        return os.fork()
    except OSError:
        os._exit(1)


def _begin(control: socket.socket, start: int, log: int, go: int) -> Start:
    """In the worker: makes it what `baton up` would have started, but for what it has imported."""
    if os.read(go, len(GO)) != GO:
        os._exit(0)
    control.detach()
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, standard)
    with open(start, "rb") as file:
        told = msgspec.msgpack.decode(file.read(), type=Start)
    for descriptor in (null, log, go):
        os.close(descriptor)
    return told


def _become(start: Start, imported: Mapping[bytes, bytes | None]) -> list[str]:
    """Sets environment, title and random state. `imported`: what importing did to the environment.
    Returns the words after `baton`."""
    import numpy as np
    from setproctitle import setproctitle

    environment = {**start.environment, **imported}
    os.environb.clear()
    os.environb.update({name: value for name, value in environment.items() if value is not None})
    arguments = [os.fsdecode(word) for word in start.arguments]
    sys.argv[1:] = arguments
    setproctitle(" ".join((sys.executable, "-m", "services.cli", *arguments)))
    np.random.seed()
    return arguments


def _load() -> bool:
    """Imports what workers of every kind import, and most of what that takes. Returns whether they
    may be forked."""
    from setproctitle import getproctitle  # comes with vLLM

    getproctitle()  # finds the command line, which it cannot once the environment was replaced
    import vllm.v1.engine.core_client
    import vllm.v1.engine.input_processor
    import vllm.v1.executor  # noqa: F401
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _changes(before: Mapping[bytes, bytes]) -> dict[bytes, bytes | None]:
    """Of the environment, since then; None for what is gone."""
    now = dict(os.environb)
    names = before.keys() | now.keys()
    return {name: now.get(name) for name in names if now.get(name) != before.get(name)}


def main() -> int:
    """Returns the exit status, of this process and of each worker."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ["BATON_SUPERVISOR_PID"]):
        return 1
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    before = dict(os.environb)
    control = socket.socket(fileno=sys.stdin.fileno())
    if not _load():
        return UNFIT
    gc.collect()
    gc.freeze()  # so that no worker visits, and by that copies, what it has from here
    control.send(GREETING)
    start = serve(control)
    if start is None:
        return 0
    arguments = _become(start, _changes(before))
    from services.cli import main as baton

    return baton(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""The fork server as shipped, but for vLLM, which takes seconds, and `baton`, in whose place each
worker does what its first argument says."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np

import services.cli
from services import fork_server


def load() -> bool:
    from setproctitle import getproctitle

    getproctitle()
    if "HANG" in os.environ:
        print("importing", flush=True)
        signal.pause()
    np.random.random()  # so that every worker inherits one state
    os.environ["SET_BY_IMPORT"] = "1"
    os.environ.pop("REMOVED_BY_IMPORT", None)
    return "UNFIT" not in os.environ


def work(argv: list[str] | None = None) -> int:
    what, *rest = argv or []
    match what:
        case "tell":
            print(json.dumps(state()))
        case "wait":
            print("waiting", flush=True)
            signal.pause()
        case "raise":
            raise KeyError(rest[0])
    return int(rest[0]) if rest else 0


def state() -> dict[str, object]:
    own = [entry for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    return {
        "parent": os.getppid(),
        "leads_session": os.getsid(0) == os.getpid(),
        "descriptors": {entry.name: str(entry.readlink()) for entry in own},
        "environment": dict(os.environ),
        "handlers": {n.name: str(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGINT)},
        "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "shares": gc.get_freeze_count() > 0,
        "words": sys.argv[1:],
        "random": [random.random(), float(np.random.random())],
    }


if __name__ == "__main__":
    fork_server._load = load
    services.cli.main = work
    sys.exit(fork_server.main())

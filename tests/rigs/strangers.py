"""Workers of other fleet files, all started at once beside a running fleet.

A worker on a CPU takes most of its start to import vLLM, so one process imports it for all, as a
worker does before it forks its engine, and forks a worker for each. From there on each runs `baton
ROLE --config FILE --name NAME` to its end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from common.engine.forking import nothing_to_collect
from tests.rigs.fleet import wait_until

STOP_SECONDS = 60.0


class Strangers:
    """They are asked for once, at a time when vLLM may be imported already."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.rigs.strangers", str(folder)],
            env=os.environ | env,
            stdin=subprocess.PIPE,
            text=True,
        )

    def start(self, files: dict[tuple[str, str], str]) -> None:
        """Each by its role and name, with the text of its fleet file."""
        for (_, name), text in files.items():
            path = self._folder / f"{name}.toml"
            path.write_text(text)
            path.chmod(0o600)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(list(files)) + "\n")
        self.process.stdin.flush()

    def told(self, name: str) -> str:
        """What it printed so far."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def ended(self, name: str, seconds: float) -> int:
        """The exit status that it has within `seconds`."""
        path = self._folder / f"{name}.status"
        wait_until(f"{name} has ended", path.exists, seconds)
        return int(path.read_text())


@contextmanager
def strangers(folder: Path, env: dict[str, str]) -> Iterator[Strangers]:
    """All are gone afterwards; what they printed is shown on failure."""
    made = Strangers(folder, env)
    try:
        yield made
    except BaseException:
        for path in sorted(folder.glob("*.log")):
            print(f"--- {path.name}", "\n".join(path.read_text().splitlines()[-25:]), sep="\n")
        raise
    finally:
        assert made.process.stdin is not None
        started = psutil.Process(made.process.pid).children(recursive=True)
        made.process.stdin.close()
        try:
            made.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            made.process.kill()
            made.process.wait()
        for process in psutil.wait_procs(started, timeout=STOP_SECONDS)[1]:
            process.kill()


def main() -> None:
    """Reads a JSON list of roles and names on standard input, and ends the workers at its end."""
    folder = Path(sys.argv[1])
    _import_vllm()
    os.environ["BATON_SUPERVISOR_PID"] = str(os.getpid())  # none outlives this process
    asked = json.loads(sys.stdin.readline() or "[]")
    with nothing_to_collect():
        pids = [_fork(folder, role, name) for role, name in asked]
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)


def _import_vllm() -> None:
    from common.config import EngineConfig
    from common.engine.vllm.args import prepare_process

    prepare_process(EngineConfig(threads=1), 1, eager=True)
    import vllm.config
    import vllm.engine.arg_utils
    import vllm.model_executor.models.llama
    import vllm.v1.engine.core_client
    import vllm.v1.engine.input_processor
    import vllm.v1.executor
    import vllm.v1.worker.cpu_worker  # noqa: F401


def _fork(folder: Path, role: str, name: str) -> int:
    """The process id of the worker."""
    from services.cli import main as baton

    pid = os.fork()
    if pid:
        return pid
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = os.EX_SOFTWARE
    try:
        status = baton([role, "--config", str(folder / f"{name}.toml"), "--name", name])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        made = folder / f"{name}.ending"
        made.write_text(str(status))
        made.rename(folder / f"{name}.status")
        os._exit(status)


if __name__ == "__main__":
    main()

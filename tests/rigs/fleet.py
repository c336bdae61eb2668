"""Starts `baton up`, waits for what it prints, and looks inside as an operator would."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import psutil

from loadtest.ports import free_port
from services.cli import main as baton
from tests.rigs.processes import BATON, kill_family

READY_SECONDS = 180.0
STOP_SECONDS = 60.0
FIXED_ROUTE = {"BATON_ROUTER__REMOTE_PREFILL": "always"}
"""Tests know the way of a request; the governor's own tests set `auto`."""


def wait_until(
    what: str, true: Callable[[], bool], seconds: float = 10.0, every: float = 0.02
) -> None:
    """Polls a condition that has no event to wait for; fails the test by name in the end. `every`:
    seconds between two looks."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(every)


class Fleet:
    """One `baton up` process. `lines` is what it printed so far."""

    def __init__(
        self,
        run_dir: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        before: tuple[str, ...] = (),
    ) -> None:
        self.run_dir = run_dir
        self.port = free_port()
        self.health_port = free_port()
        self.lines: list[str] = []
        self._printed: queue.Queue[str | None] = queue.Queue()
        arguments = ["--run-dir", str(run_dir), "--port", str(self.port)]
        arguments += ["--health-port", str(self.health_port), *flags]
        fixed_route = {} if "--mode" in flags else FIXED_ROUTE
        self.process = subprocess.Popen(
            [*before, *BATON, "up", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | fixed_route | (env or {}),
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for_line(self, pattern: str, seconds: float = READY_SECONDS) -> str:
        """The first line, printed already or within `seconds`, that the pattern is found in."""
        deadline = time.monotonic() + seconds
        seen = 0
        while True:
            while seen < len(self.lines):
                if re.search(pattern, self.lines[seen]):
                    return self.lines[seen]
                seen += 1
            try:
                line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None and seen >= len(self.lines):
                raise AssertionError(f"never printed {pattern!r}:\n" + "\n".join(self.lines))

    def wait_ready(self) -> Self:
        self.wait_for_line(r"^Ready in ")
        return self

    def stop(self, signum: signal.Signals = signal.SIGINT) -> int:
        """As Ctrl-C does. Returns the exit status."""
        self.process.send_signal(signum)
        return self.process.wait(STOP_SECONDS)

    def children(self) -> dict[str, psutil.Process]:
        """The daemons by name, without one that has just ended."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):
                command = child.cmdline()
                if "--name" in command:
                    found[command[command.index("--name") + 1]] = child
        return found

    def ctl(self, *arguments: str) -> Any:
        """The result of `baton ctl VERB ... --json`."""
        return json.loads(self.told(*arguments, "--json"))

    def told(self, *arguments: str) -> str:
        """What `baton ctl VERB ...` prints. It runs in this process, on a thread of its own: to
        start one takes up to a second, in which what is looked at may be over."""
        words = ["ctl", *arguments, "--run-dir", str(self.run_dir)]
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err), ThreadPoolExecutor(1) as aside:
            status = aside.submit(baton, words).result(30)
        assert status == 0, err.getvalue() + out.getvalue()
        return out.getvalue()

    def counted(self, metric: str, label: str = "") -> float:
        """The sum of it over all daemons, as the health daemon tells it. `label`: of those rows
        alone that have it, as `name="value"`."""
        labels = rf"{{.*{label}.*}}" if label else r"(?:{.*})?"
        with urlopen(f"http://127.0.0.1:{self.health_port}/metrics", timeout=10) as page:
            values = re.findall(rf"^{metric}{labels} (\S+)$", page.read().decode(), re.MULTILINE)
        return sum(map(float, values))

    def log(self, name: str) -> str:
        return (self.run_dir / "logs" / f"{name}.log").read_text(errors="replace")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._printed.put(line)
        self._printed.put(None)


@contextmanager
def fleet(
    *flags: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()
) -> Iterator[Fleet]:
    """A fleet that is gone afterwards, whatever the test did; its logs are shown on failure.
    `before`: a command that runs the rest of its command line."""
    run_dir = Path(tempfile.mkdtemp(prefix="baton-"))
    running = Fleet(run_dir, *flags, env=env, before=before)
    try:
        yield running
    except BaseException:
        print("\n".join(running.lines))
        for path in sorted((run_dir / "logs").glob("*.log")):
            print(f"--- {path.name}", "\n".join(path.read_text().splitlines()[-25:]), sep="\n")
        raise
    finally:
        kill_family(running.process)
        running.process.wait()
        shutil.rmtree(run_dir, ignore_errors=True)

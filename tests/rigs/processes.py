"""Daemons and commands of `baton`, each a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

BATON = (sys.executable, "-m", "services.cli")


def baton(*words: str, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*BATON, *words], capture_output=True, text=True, timeout=seconds, check=False
    )


def said(*words: str) -> str:
    """What the command prints, which must succeed."""
    done = baton(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def add_key(file: Path, tenant: str, *limits: str) -> str:
    """The new API key."""
    return said("keys", "add", "--file", str(file), "--tenant", tenant, *limits).strip()


def kill_family(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """This process and all that it started, which may die with it before they are killed."""
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()


class Processes:
    """`folder` holds what a test writes and one log per process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        *words: str,
        program: tuple[str, ...] = BATON,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """`env`: what is added to this process' own."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*program, *words], env=os.environ | dict(env or {}), stdout=log, stderr=log
            )
        return self.running[name]

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@contextmanager
def processes() -> Iterator[Processes]:
    """All that were started are gone afterwards; their logs are shown on failure."""
    made = Processes(Path(tempfile.mkdtemp(prefix="baton-")))
    try:
        yield made
    except BaseException:
        for name in made.running:
            print(f"--- {name}", made.log(name)[-2000:], sep="\n")
        raise
    finally:
        for process in made.running.values():
            process.kill()
            process.wait()
        shutil.rmtree(made.folder, ignore_errors=True)

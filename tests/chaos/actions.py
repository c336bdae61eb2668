"""What can be done to a daemon, each with the proof that it was done to the one that was meant.

`strike` acts on `aim`, `landed` looks at `target`; the two are one, save in the control runs that
show that a fault gone astray is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import signal
import subprocess
from collections.abc import Awaitable
from typing import Protocol

import psutil

from tests.chaos.cell import Cell
from tests.chaos.network import Network

LAND_SECONDS = 5.0


class MissedError(AssertionError):
    """The fault did not take effect, so what follows would prove nothing."""


class Action(Protocol):
    @property
    def name(self) -> str: ...

    def strike(self) -> None: ...

    def landed(self) -> bool | Awaitable[bool]: ...


async def inflict(cell: Cell, action: Action, seconds: float = LAND_SECONDS) -> None:
    """Raises MissedError."""
    action.strike()
    try:
        await cell.until(action.name, action.landed, seconds)
    except AssertionError as error:
        raise MissedError(f"{action.name} took no effect: {error}") from error


class _OnDaemon:
    def __init__(self, cell: Cell, target: str, aim: str = "") -> None:
        self.cell, self.target, self.aim = cell, target, aim or target
        self.pid = cell.pid(target)

    @property
    def name(self) -> str:
        return f"{type(self).__name__.lower()} {self.target}"


class Kill(_OnDaemon):
    def strike(self) -> None:
        self.cell.signal(self.aim, signal.SIGKILL)

    def landed(self) -> bool:
        ends = [death.status for death in self.cell.deaths if death.pid == self.pid]
        return ends == [-signal.SIGKILL]


class Term(_OnDaemon):
    """Its drain has begun."""

    def __init__(self, cell: Cell, target: str, aim: str = "") -> None:
        super().__init__(cell, target, aim)
        self._before = cell.log(target).count("daemon.stopping")

    def strike(self) -> None:
        self.cell.signal(self.aim, signal.SIGTERM)

    def landed(self) -> bool:
        return self.cell.log(self.target).count("daemon.stopping") > self._before


class Stop(_OnDaemon):
    """SIGSTOP of the daemon and all that it forked, until `heal`."""

    def _family(self, name: str) -> list[psutil.Process]:
        daemon = self.cell.process(name)
        return [daemon, *daemon.children(recursive=True)]

    def strike(self) -> None:
        for process in self._family(self.aim):
            process.suspend()

    def landed(self) -> bool:
        return all(
            process.status() == psutil.STATUS_STOPPED for process in self._family(self.target)
        )

    def heal(self) -> None:
        for process in self._family(self.aim):
            process.resume()


class Memory(_OnDaemon):
    """No byte of address space more than it has, plus `spare`."""

    def __init__(self, cell: Cell, target: str, aim: str = "", spare: int = 0) -> None:
        super().__init__(cell, target, aim)
        self._spare = spare

    def strike(self) -> None:
        most = self.cell.process(self.aim).memory_info().vms + self._spare
        resource.prlimit(self.cell.pid(self.aim), resource.RLIMIT_AS, (most, most))

    def landed(self) -> bool:
        soft, _ = resource.prlimit(self.pid, resource.RLIMIT_AS)
        return 0 < soft <= self.cell.process(self.target).memory_info().vms + self._spare


class Bend(_OnDaemon):
    """`how`: as in `tests.chaos.bent`, which the target must run; lands when KV traffic flows."""

    def __init__(self, cell: Cell, target: str, how: str, aim: str = "") -> None:
        super().__init__(cell, target, aim)
        self._how = how
        self._before = self.count()

    @property
    def name(self) -> str:
        return f"{self._how} KV messages of {self.target}"

    def count(self) -> int:
        """Messages bent so far."""
        proof = self.cell.run_dir / f"bent-{self.target}"
        return proof.stat().st_size if proof.exists() else 0

    def strike(self) -> None:
        (self.cell.run_dir / f"bend-{self.aim}").write_text(self._how)

    def landed(self) -> bool:
        return self.count() > self._before

    def heal(self) -> None:
        (self.cell.run_dir / f"bend-{self.aim}").unlink(missing_ok=True)


class FullDisk(_OnDaemon):
    """The folder of all logs has no byte left, until `heal`. Raises OSError where nothing may be
    mounted. `aim`: another folder."""

    def __init__(self, cell: Cell, target: str, aim: str = "") -> None:
        super().__init__(cell, target, "")
        self._folder = cell.run_dir / "logs"
        self._mounted = cell.run_dir / aim if aim else self._folder

    def strike(self) -> None:
        """Before the target is started anew: it writes to the file that it had opened."""
        self._mounted.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(self._mounted)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"this host lets us mount nothing: {done.stderr.strip()}")
        with contextlib.suppress(OSError), (self._mounted / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(4096))
                filler.flush()

    def landed(self) -> bool:
        try:
            with (self._folder / f"{self.target}.log").open("ab") as log:
                log.write(bytes(64))
        except OSError as error:
            return error.errno == errno.ENOSPC
        return False

    def heal(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._mounted)], check=True)


class Hold(_OnDaemon):
    """Nothing passes between the target and the router, in either direction, and no connection is
    closed: a control partition. With `delay` it passes, so many seconds late."""

    def __init__(self, cell: Cell, target: str, aim: str = "", delay: float = 0.0) -> None:
        super().__init__(cell, target, aim)
        self._delay = delay
        self._before = cell.wires[target].held

    @property
    def name(self) -> str:
        what = f"delay by {self._delay:g} s" if self._delay else "partition"
        return f"{what} of {self.target} from the router"

    def strike(self) -> None:
        self.cell.wires[self.aim].hold(self._delay or None)

    def landed(self) -> bool:
        return self.cell.wires[self.target].held > self._before

    def heal(self) -> None:
        self.cell.wires[self.aim].pass_on()


class CutData(_OnDaemon):
    """The network of the target's KV plane takes packets and delivers none, until `heal`."""

    def __init__(self, cell: Cell, target: str, network: Network, aim: str = "") -> None:
        super().__init__(cell, target, aim)
        self._network = network

    def strike(self) -> None:
        self._network.cut(self.aim)

    async def landed(self) -> bool:
        return not await asyncio.to_thread(self._network.reaches, self.target)

    def heal(self) -> None:
        self._network.mend(self.aim)

"""Real daemons under a supervisor that speaks sd_notify: what they say from start to stop."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.rigs.fleet import wait_until
from tests.rigs.processes import Processes, processes

WATCHDOG_SECONDS = 0.6
FLEET = """\
[fleet]
run_dir = "{run_dir}"
drain_ms = 2000
[engine]
kind = "sim"
[router]
max_queue = 7
[decode.d0]
"""


class Supervised:
    """One daemon, and the socket on which its supervisor listens."""

    def __init__(self, made: Processes) -> None:
        folder, self._made = made.folder, made
        self.fleet = folder / "fleet.toml"
        self.fleet.write_text(FLEET.format(run_dir=folder))
        self.said: Counter[str] = Counter()
        self.order: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.setblocking(False)

    def start(self, role: str, name: str) -> subprocess.Popen[bytes]:
        env = {
            "NOTIFY_SOCKET": self._socket.getsockname(),
            "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
        }
        return self._made.start(name, role, "--config", str(self.fleet), "--name", name, env=env)

    def log(self, name: str) -> str:
        return self._made.log(name)

    def heard(self, state: str, times: int = 1) -> bool:
        """Whether it was said so often, by now."""
        while True:
            try:
                first = self._socket.recv(4096).decode().splitlines()[0]
            except BlockingIOError:
                return self.said[state] >= times
            self.said[first] += 1
            if first != "WATCHDOG=1" and not first.startswith("STATUS="):
                self.order.append(first)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def supervised() -> Iterator[Supervised]:
    with processes() as started:
        made = Supervised(started)
        yield made
        made.close()


@pytest.mark.parametrize(("role", "name"), [("router", "r0"), ("decode", "d0"), ("gateway", "g0")])
def test_a_daemon_tells_its_supervisor_how_it_fares(
    supervised: Supervised, role: str, name: str
) -> None:
    process = supervised.start(role, name)
    wait_until("it is ready", lambda: supervised.heard("READY=1"), 60)
    wait_until("it beats", lambda: supervised.heard("WATCHDOG=1", 3), 20)
    before = supervised.fleet.read_text()
    supervised.fleet.write_text(before.replace("max_queue = 7", "max_queue = 9"))
    process.send_signal(signal.SIGHUP)
    wait_until("it has read the file again", lambda: supervised.heard("READY=1", 2), 20)
    process.terminate()
    assert process.wait(30) == 0, supervised.log(name)
    assert supervised.heard("STOPPING=1")
    assert supervised.order == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]
    applied = "router.max_queue" if role == "router" else "nothing to change"
    assert f'"sentence": "{applied}"' in supervised.log(name)

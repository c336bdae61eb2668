"""The units under a real systemd: started in order, restarted when killed or hung, drained on stop.

Not in `make test`: `make systemd` installs what it needs and runs it. The daemons run in the units'
own sandbox, with simulated engines, or with BATON_BOOT_ENGINE=vllm real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.fleet import wait_until
from tests.systemd.container import TREE, Container, booted, why_not

WANTED = os.environ.get("BATON_BOOT") == "1"
ENGINE = os.environ.get("BATON_BOOT_ENGINE", "sim")
BATON = str(Path(sys.executable).parent / "baton")
FLEET = Path("/etc/baton/fleet.toml")
UNITS = (
    "baton-router.service",
    "baton-prefill@p0.service",
    "baton-decode@d0.service",
    "baton-gateway@g0.service",
)
WATCHDOG_SECONDS = 5
EXTRA = f'[engine]\nkind = "{ENGINE}"\n[router]\nremote_prefill = "always"\n'
DROP_IN = Path("/etc/systemd/system/baton-.service.d/90-test.conf")
OF_THIS_TREE = f"Environment=PYTHONPATH={TREE}"
START_SECONDS = 240.0
CLIENT = """\
import json, sys, urllib.request
body = {"model": "baton-tiny", "prompt": "x " * 400, "max_tokens": int(sys.argv[1]), "stream": True}
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(),
                                 {"content-type": "application/json"})
for line in urllib.request.urlopen(request, timeout=60):
    print(line.decode(), end="", flush=True)
"""

pytestmark = [
    pytest.mark.skipif(not WANTED, reason="boots a machine: run `make systemd`"),
    pytest.mark.skipif(WANTED and bool(why_not()), reason=why_not()),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def machine() -> Iterator[Container]:
    with booted() as container:
        install(container)
        yield container


def install(machine: Container) -> None:
    """As the installer's own last words say."""
    said = machine.run(BATON, "install-systemd", "--from-home")
    assert "written" in said
    again = machine.run(BATON, "install-systemd", "--from-home")
    assert "written" not in again
    assert "updated" not in again
    fleet = machine.run("cat", str(FLEET)) + EXTRA
    write(machine, FLEET, fleet.replace("[fleet]\n", "[fleet]\ndrain_ms = 20000\n"))
    write(machine, DROP_IN, f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\n{OF_THIS_TREE}\n")
    machine.run("systemd-sysusers")
    machine.run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/baton.conf")
    machine.run(BATON, "check", "--config", str(FLEET))
    machine.run("systemctl", "daemon-reload")
    enable = next(line for line in said.splitlines() if "systemctl enable" in line)
    machine.run(*enable.split())
    machine.run("systemctl", "start", "baton.target", seconds=START_SECONDS)
    down = [unit for unit in UNITS if not active(machine, unit)]
    assert down == [], machine.journal()


def write(machine: Container, path: Path, text: str) -> None:
    machine.run("mkdir", "-p", str(path.parent))
    script = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
    machine.run(sys.executable, "-c", script, str(path), text)


def active(machine: Container, unit: str) -> bool:
    return machine.show(unit, "ActiveState") == "active"


def entered(machine: Container, unit: str, state: str) -> int:
    return int(machine.show(unit, f"{state}EnterTimestampMonotonic"))


def status(machine: Container) -> dict[str, object]:
    said = machine.tried(BATON, "ctl", "status", "--json", "--config", str(FLEET))
    result: dict[str, object] = json.loads(said.stdout) if said.returncode == 0 else {}
    return result


def serves(machine: Container) -> bool:
    return bool(status(machine).get("ready"))


def handed_over(machine: Container) -> int:
    kv = json.loads(machine.run(BATON, "ctl", "kv", "--json", "--config", str(FLEET)))
    return sum(worker["counts"].get("handoffs_in", 0) for worker in kv["workers"])


def restarted_after(machine: Container, unit: str, signum: str, seconds: float) -> float:
    """Seconds from the signal to READY of the next process."""
    before = machine.show(unit, "MainPID")
    began = time.monotonic()
    machine.run("kill", f"-{signum}", before)

    def back() -> bool:
        return machine.show(unit, "MainPID") not in {before, "0"} and active(machine, unit)

    wait_until(f"{unit} is active again", back, seconds)
    return time.monotonic() - began


def test_they_start_in_order_and_serve(machine: Container) -> None:
    wait_until("the fleet serves", lambda: serves(machine), 30)
    router, prefill, decode, gateway = (entered(machine, unit, "Active") for unit in UNITS)
    assert router <= min(prefill, decode)
    assert gateway >= max(prefill, decode)
    answer = machine.run(sys.executable, "-c", CLIENT, "16")
    assert answer.rstrip().endswith("data: [DONE]"), answer
    wait_until("KV came, inside the sandbox", lambda: handed_over(machine) > 0, 30)
    said = machine.run("journalctl", "--no-pager", "-u", UNITS[2])
    assert "memfd/memory" in said, "the units' sandbox keeps KV from being read where it was staged"


def test_the_run_dir_is_for_the_group_alone(machine: Container) -> None:
    modes = machine.run("stat", "-c", "%a %U:%G", "/run/baton", "/run/baton/admin.sock")
    assert modes.splitlines() == ["750 baton:baton", "660 baton:baton"]


@pytest.mark.parametrize("unit", UNITS)
def test_a_killed_daemon_is_back(machine: Container, unit: str) -> None:
    seconds = restarted_after(machine, unit, "KILL", 60)
    print(f"{unit}: active {seconds:.2f} s after SIGKILL")
    wait_until("the fleet serves again", lambda: serves(machine), 30)


@pytest.mark.parametrize("unit", [UNITS[0], UNITS[2]])
def test_a_hung_daemon_is_killed_by_the_watchdog_and_back(machine: Container, unit: str) -> None:
    seconds = restarted_after(machine, unit, "STOP", 120)
    print(f"{unit}: active {seconds:.2f} s after SIGSTOP, WatchdogSec={WATCHDOG_SECONDS}")
    said = machine.run("journalctl", "--no-pager", "-u", unit)
    assert "Watchdog timeout" in said
    wait_until("the fleet serves again", lambda: serves(machine), 30)


def test_a_reload_keeps_the_process_and_is_answered(machine: Container) -> None:
    before = [machine.show(unit, "MainPID") for unit in UNITS]
    machine.run("systemctl", "reload", *UNITS)
    assert [machine.show(unit, "MainPID") for unit in UNITS] == before
    said = machine.run("journalctl", "--no-pager", "-u", UNITS[0])
    assert "config.reloaded" in said


def test_a_stop_lets_streams_finish_and_goes_from_the_gateway_to_the_router(
    machine: Container,
) -> None:
    client = subprocess.Popen(
        machine.inside(sys.executable, "-c", CLIENT, "300"), stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    first = client.stdout.readline()
    began = time.monotonic()
    machine.run("systemctl", "stop", "baton.target", "baton-*")
    print(f"baton.target: stopped in {time.monotonic() - began:.2f} s with a stream running")
    rest, _ = client.communicate(timeout=60)
    assert (first + rest).rstrip().endswith("data: [DONE]"), (first + rest)[-500:]
    router, prefill, decode, gateway = (entered(machine, unit, "Inactive") for unit in UNITS)
    assert gateway <= min(prefill, decode)
    assert max(prefill, decode) <= router
    results = {unit: machine.show(unit, "Result") for unit in UNITS}
    assert set(results.values()) == {"success"}, results


def test_a_file_that_cannot_be_used_is_not_tried_again(machine: Container) -> None:
    good = machine.run("cat", str(FLEET))
    write(machine, FLEET, good + "max_queue = -1\n")
    machine.tried("systemctl", "start", "baton-router.service")
    wait_until("it failed", lambda: not_tried_again(machine, "baton-router.service"), 30)
    assert machine.show("baton-router.service", "NRestarts") == "0"
    write(machine, FLEET, good)


def not_tried_again(machine: Container, unit: str) -> bool:
    return machine.show(unit, "ActiveState") == "failed" and (
        machine.show(unit, "ExecMainStatus") == "2"
    )

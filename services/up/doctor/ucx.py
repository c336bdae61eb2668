"""What UCX will really use on this host, tried in a child process: a UCX that crashes or hangs is a
finding, not the doctor's end.

Run as a module, it is that child: it connects two UCX workers by an address of this host and prints
one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import socket
import subprocess
import sys
from typing import Any

import psutil

from common.config import KvConfig
from common.errors import BatonError
from common.kv.staging.shared_segment import Bytes, SharedSegment, map_remote_segment, shares_memory
from common.kv.transport.chosen_transports import CUDA, SHARED_MEMORY, wants_more_than_tcp
from services.up.doctor.finding import Finding, failed, passed, warned

PROBE_SECONDS = 20.0
CONNECT_SECONDS = 8.0
FIX_TRANSPORTS = "see [kv] transports and interfaces; `tcp,sm,self` works on every host"


def probe(kv: KvConfig) -> dict[str, Any]:
    """The child's report: `error`, or `lanes` of a connection inside this host, the `resources`
    that UCX could use, and `loans`, whether one process can read what another one staged."""
    plan = (kv.transports, kv.interfaces, own_address(kv))
    command = [sys.executable, "-m", "services.up.doctor.ucx", *plan]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env=os.environ | {"UCX_LOG_LEVEL": "fatal"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"UCX did not connect within {PROBE_SECONDS:g} s"}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return {"error": f"UCX ended with status {done.returncode}: {last}"}


def own_address(kv: KvConfig) -> str:
    """By which a worker of this host reaches another: one of the named interfaces, if any has."""
    addresses = psutil.net_if_addrs()
    for name in filter(None, kv.interfaces.split(",")):
        for address in addresses.get(name.strip(), ()):
            if address.family is socket.AF_INET:
                return address.address
    return kv.host


def findings(kv: KvConfig, seen: dict[str, Any]) -> list[Finding]:
    """Pure."""
    if "error" in seen:
        return [failed("ucx", seen["error"], FIX_TRANSPORTS)]
    return [
        _inside(kv, seen["lanes"], loans=seen["loans"]),
        _between(kv, seen["resources"]),
    ]


def _inside(kv: KvConfig, lanes: list[str], *, loans: bool) -> Finding:
    first = lanes[0] if lanes else "nothing"
    saw = f"KV between workers of this host goes over {first}"
    if loans:
        saw = (
            f"KV between workers of this host is read where it was staged, its offsets over {first}"
        )
    names = {lane.split("/")[0] for lane in lanes}
    asked = {name.strip() for name in kv.transports.split(",")}
    if not names & SHARED_MEMORY and asked & (SHARED_MEMORY | {"sm", "shm", "all"}) - {"self"}:
        return warned(
            "ucx inside", saw, "shared memory is not usable; is /dev/shm or SysV limited?"
        )
    return passed("ucx inside", f"{saw} (of {', '.join(lanes)})")


def _between(kv: KvConfig, resources: list[str]) -> Finding:
    inside = SHARED_MEMORY | CUDA
    wires = [r for r in resources if r.split("/")[0] not in inside and r != "tcp/lo"]
    faster = [r for r in wires if not r.startswith("tcp/")]
    if faster:
        return passed("ucx between", f"KV between hosts goes over {', '.join(faster)}")
    if not wires:
        return warned(
            "ucx between",
            "UCX sees no network device: KV cannot leave this host",
            "bring an interface up, or name one in [kv] interfaces",
        )
    saw = f"KV between hosts goes over {', '.join(wires)}"
    if wants_more_than_tcp(kv.transports):
        return warned(
            "ucx between",
            f"{saw}: UCX finds nothing faster of {kv.transports!r}",
            "check the RDMA driver (ibv_devices), its link, and memlock; or ask for tcp,sm,self",
        )
    return passed("ucx between", saw)


async def _connect(transports: str, interfaces: str, host: str) -> dict[str, Any]:
    from common.kv.transport.ucx import UcxLink, UcxWorker

    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[UcxLink] = loop.create_future()
    opened: asyncio.Future[str | None] = loop.create_future()

    def accept(link: UcxLink) -> None:
        link.open(lambda _: accepted.set_result(link))

    listener = UcxWorker(transports, accept, interfaces=interfaces)
    dialler = UcxWorker(transports, accept, interfaces=interfaces)
    try:
        listener.start()
        dialler.start()
        link = dialler.connect(host, listener.listen(0))
        link.open(opened.set_result)
        async with asyncio.timeout(CONNECT_SECONDS):
            error = await opened
            await accepted
    except TimeoutError:
        over = f"over interfaces {interfaces!r} " if interfaces else ""
        return {"error": f"no connection to {host} {over}within {CONNECT_SECONDS:g} s"}
    except BatonError as error_:
        return {"error": error_.message}
    if error is not None:
        return {"error": f"no connection to {host}: {error}"}
    loans = shares_memory(transports) and await _can_loan()
    return {"lanes": link.lanes(), "resources": dialler.resources(), "loans": loans}


async def _can_loan() -> bool:
    mapped: asyncio.Future[Bytes | None] = asyncio.get_running_loop().create_future()
    try:
        segment = SharedSegment(mmap.PAGESIZE)
        segment.open()
    except OSError:
        return False
    map_remote_segment(segment.name, mapped.set_result)
    try:
        return await mapped is not None
    finally:
        segment.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_connect(*sys.argv[1:4]))), flush=True)
    # UCX objects of a half-open connection may crash in a destructor; nothing is left to lose.
    os._exit(0)

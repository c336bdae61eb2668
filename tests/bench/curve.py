"""What CURVE costs: CPU of both ends and libzmq's threads for a message, against the same without.

TCP on loopback, DEALER to ROUTER as workers and gateways use them, bursts of 64.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import uvloop

from tests.component.common.security.curve_rig import ANY_PORT, Hosts
from tests.rigs.peers import Peer

SIZES = (200, 2_000, 64_000)
MESSAGES = {200: 12_000, 2_000: 8_000, 64_000: 1_500}
BURST = 64
ROUNDS = 6


async def measure(hosts: Hosts, size: int) -> dict[bool, tuple[float, float]]:
    """(CPU µs, round trip µs) for a message without and with CURVE, the best of `ROUNDS` that
    take turns."""
    ends = {secured: await _pair(hosts, secured=secured) for secured in (False, True)}
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for secured, (client, server) in ends.items():
            cost = await _burst(client, server, size, MESSAGES[size])
            found[secured].append((cost, await _trips(client, server)))
    return {
        secured: (min(cost for cost, _ in rounds), min(trip for _, trip in rounds))
        for secured, rounds in found.items()
    }


async def _pair(hosts: Hosts, *, secured: bool) -> tuple[Peer, Peer]:
    server = hosts.end(hosts.curve("a") if secured else None, "r0", bind=ANY_PORT)
    client = hosts.end(hosts.curve("b") if secured else None, "p0", connect=server.socket.address)
    await client.up()
    return client, server


async def _burst(client: Peer, server: Peer, size: int, messages: int) -> float:
    payload = [bytes(size)]
    began = _cpu()
    for _ in range(messages // BURST):
        for _ in range(BURST):
            assert client.socket.send(payload)
        for _ in range(BURST):
            await server.inbox.get()
    return (_cpu() - began) / messages * 1e6


async def _trips(client: Peer, server: Peer, count: int = 400) -> float:
    began = time.perf_counter()
    for _ in range(count):
        client.socket.send([b"x"])
        identity, frame = await server.inbox.get()
        server.socket.send([identity, frame])
        await client.inbox.get()
    return (time.perf_counter() - began) / count * 1e6


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(Path(folder), "a", "b")
        print(f"{'bytes':>6}  {'plain':>8}  {'CURVE':>8}  {'more':>8}  {'round trip':>22}")
        for size in SIZES:
            found = await measure(hosts, size)
            (plain, trip), (curve, curve_trip) = found[False], found[True]
            print(
                f"{size:>6}  {plain:>5.1f} µs  {curve:>5.1f} µs  {curve - plain:>5.1f} µs  "
                f"{trip:>6.0f} -> {curve_trip:.0f} µs"
            )
        hosts.close()


def main() -> None:
    uvloop.run(run())

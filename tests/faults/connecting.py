"""`python -m tests.faults.connecting`: processes that are killed while they connect to this one.

UCX reports them in the middle of its own connecting: what this side posted before must neither stay
pending nor be sent to a memory that has gone. Prints what is left, and ends with a signal if UCX
crashed. `--clients` processes connect `LINKS` links each and are killed within `WITHIN_S`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection

import numpy as np

from common.kv.transport.ucx import UcxLink, UcxWorker

LINKS = 8
WITHIN_S = 0.02
AT_ONCE = 3
QUIET_S = 10.0
FRAME_BYTES = 2048
TRANSPORTS = "tcp,sm,self"


class Listening:
    """This side: what a worker does with those who connect."""

    def __init__(self) -> None:
        self.accepted = 0
        self.links: set[UcxLink] = set()
        self.ucx = UcxWorker(TRANSPORTS, self._accept)

    def _accept(self, link: UcxLink) -> None:
        self.accepted += 1
        self.links.add(link)
        link.remote()

        def close(_: str | None = None) -> None:
            link.close()
            self.links.discard(link)

        def opened(error: str | None) -> None:
            if error is None:
                link.receive(np.zeros(FRAME_BYTES, np.uint8), link.receive_tag, close)
            else:
                close()

        link.on_lost = close
        link.open(opened)


async def listen(ports: Connection, clients_over: Connection) -> None:
    listening = Listening()
    listening.ucx.start()
    ports.send(listening.ucx.listen(0))
    await asyncio.to_thread(clients_over.recv)
    deadline = time.monotonic() + QUIET_S
    while (listening.ucx.inflight or listening.links) and time.monotonic() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    print(
        f"{listening.accepted} accepted, {len(listening.links)} links and "
        f"{listening.ucx.inflight} pending requests left",
        flush=True,
    )
    listening.ucx.close()


def clients(ports: Connection, over: Connection, count: int, seed: int) -> None:
    """Forks the clients: this process never loads UCX, and each of them does."""
    port = ports.recv()
    delays = random.Random(seed)
    for _ in range(0, count, AT_ONCE):
        children = [_fork(port, delays.uniform(0, WITHIN_S)) for _ in range(AT_ONCE)]
        for child in children:
            os.waitpid(child, 0)
    over.send(None)


def _fork(port: int, delay_s: float) -> int:
    child = os.fork()
    if child == 0:
        asyncio.run(_connect(port, delay_s))
    return child


async def _connect(port: int, delay_s: float) -> None:
    ucx = UcxWorker(TRANSPORTS, lambda _: None)
    ucx.start()
    for _ in range(LINKS):
        ucx.connect("127.0.0.1", port).open(lambda _: None)
    await asyncio.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.connecting", description=__doc__)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    context = multiprocessing.get_context("fork")
    ports, to_clients = context.Pipe(duplex=False)
    over, is_over = context.Pipe(duplex=False)
    process = context.Process(
        target=clients, args=(ports, is_over, options.clients, options.seed), daemon=True
    )
    process.start()
    asyncio.run(listen(to_clients, over))


if __name__ == "__main__":
    main()

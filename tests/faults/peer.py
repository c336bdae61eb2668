"""A worker of the fault run in a process of its own: a real KV service, an engine that is not.

The engine is played by the main thread: on P it takes blocks, fills them chunk by chunk and frees
and wipes them when the send has ended; on D it takes blocks, fetches, and compares every block
that became visible. What it reports to the driver, in order, over one pipe:
    ("up", address)                    ("bent", kind, request, transfer, index)
    ("verdict", transfer, index, bad)  ("end", side, name, attempt, error, retries, wrong)
    ("holdings", counts)
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import numpy as np

from common.identity import AttemptKey
from common.kv.checksum.header import (
    HEADER_BYTES,
    Arrival,
    CopyIn,
    ExpectedMessage,
    Verdict,
    verify_message,
)
from common.kv.layout import HostMemory
from common.kv.messages import KvDone
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.kv.sides import arrivals as d_side
from common.kv.staging import loans
from common.messages import Ticket
from tests.faults.content import CONFIG, GEOMETRY, Pool, block_content
from tests.faults.holdings import holdings
from tests.faults.plan import Spec
from tests.faults.shim import Shim

ROUND_S = 0.25


@dataclass(slots=True)
class _Held:
    spec: Spec
    blocks: list[int]
    computed: int = 0


class Worker:
    """Either side. `control`: "" or how this run is made useless (see `run`)."""

    def __init__(
        self,
        pipe: Connection,
        name: str,
        incarnation: str,
        control: str,
        transports: str,
        secrets_file: str,
    ) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._wake_out, self._wake_in = os.pipe()
        self._pool = Pool()
        self._held: dict[tuple[str, AttemptKey], _Held] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._shim = Shim(self._bent, "-missed" if control == "misaimed" else "")
        self._shim.install()
        self._blind = control == "blind"
        d_side.verify_message = loans.verify_message = self._judge  # type: ignore[attr-defined]
        self._service = KvService(
            WorkerIdentity(name, incarnation, "f", secrets_file=secrets_file),
            msgspec.structs.replace(CONFIG, transports=transports),
            HostMemory(self._pool.base, GEOMETRY),
            on_ended=self._wake,
        )
        self._report("up", self._service.start())

    def run(self) -> None:
        while True:
            left = self._due[0][0] - time.monotonic() if self._due else ROUND_S
            ready = wait([self._pipe, self._wake_out], max(0.0, left))
            if self._wake_out in ready:
                os.read(self._wake_out, 4096)
            for done in self._service.drain():
                self._ended(done)
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            if self._pipe in ready:
                verb, *args = self._pipe.recv()
                if verb == "exit":
                    self._service.stop()
                    return
                self._act(verb, args)

    def _act(self, verb: str, args: list[Any]) -> None:
        if verb == "serve":
            self._serve(*args)
        elif verb == "fetch":
            self._fetch(*args)
        elif verb == "holdings":
            self._pool.check(self._pool.free)
            counts = holdings(self._service, self._shim.extra)
            counts |= {"blocks": len(self._held), "dirty blocks": self._pool.dirty}
            self._report("holdings", counts)
        else:
            raise AssertionError(f"no such verb: {verb}")

    # ------------------------------------------------------------ P

    def _serve(self, spec: Spec, ticket: Ticket, delay_s: float) -> None:
        key = (ticket.request_id, ticket.attempt)
        self._arm(spec, ticket)
        self._held["send", key] = _Held(spec, [])

        def offer() -> None:
            self._service.offer(ticket, spec.blocks)
            for step, computed in enumerate(spec.chunks):
                self._later(step * spec.gap_ms / 1000, partial(self._chunk, key, computed))
            if spec.withdraw:
                self._later(spec.release_ms / 1000, lambda: self._preempt(key))
            if spec.release == "p":
                self._later(spec.release_ms / 1000, lambda: self._service.release(key, "gone"))

        self._later(delay_s, offer)

    def _chunk(self, key: AttemptKey, computed: int) -> None:
        held = self._held.get(("send", key))
        if held is None:
            return
        held.blocks += self._pool.take(held.spec.blocks - len(held.blocks))
        for number in range(held.computed, computed):
            self._pool.write(held.blocks[number], held.spec.name, number)
        held.computed = max(held.computed, computed)
        self._service.progress(key, held.blocks, held.computed)

    def _preempt(self, key: AttemptKey) -> None:
        """The engine takes the blocks for others, and computes the prompt again elsewhere."""
        held = self._held.get(("send", key))
        if held is None or not held.blocks:
            return
        self._service.withdraw(key)
        self._pool.give(held.blocks)
        held.blocks, held.computed = [], 0
        self._bent("case:withdraw", held.spec.name, 0, 0)
        self._later(0.005, lambda: self._chunk(key, held.spec.blocks))

    # ------------------------------------------------------------ D

    def _fetch(self, spec: Spec, ticket: Ticket, delay_s: float) -> None:
        key = (ticket.request_id, ticket.attempt)
        self._arm(spec, ticket)
        held = self._held["receive", key] = _Held(spec, [])

        def fetch() -> None:
            held.blocks = self._pool.take(spec.blocks - spec.first_block)
            self._service.fetch(ticket, spec.first_block, held.blocks)
            if spec.release == "d":
                self._later(spec.release_ms / 1000, lambda: self._service.release(key, "gone"))

        self._later(delay_s, fetch)

    def _judge(
        self,
        message: np.ndarray,
        transfer: int,
        slot: int,
        planned: Callable[[int], ExpectedMessage | None],
        copy_in: CopyIn,
        *,
        key: bytes = b"",
    ) -> Arrival:
        """The product's verdict, and whether it was a wrong one; runs on the KV thread. A loan that
        P called back meanwhile is not held against it: the product looks again, too."""
        seal = message[:HEADER_BYTES].tobytes()
        arrival = verify_message(message, transfer, slot, planned, copy_in, key=key)
        if arrival.verdict is Verdict.CORRUPT and message[:HEADER_BYTES].tobytes() == seal:
            self._report("verdict", transfer, slot, False)
            if self._blind:
                arrival = Arrival(Verdict.OK, slot)
        kv_thread = self._service._kv_thread
        assert kv_thread is not None
        attempt = kv_thread.receive_side._by_transfer.get(transfer)
        held = self._held.get(("receive", attempt)) if attempt is not None else None
        expected = planned(arrival.index)
        if arrival.verdict is Verdict.OK and held is not None and expected is not None:
            flight = message[HEADER_BYTES : expected.message_bytes]
            pages = flight.reshape(expected.layers, expected.blocks, GEOMETRY.page_bytes)
            layers = slice(expected.first_layer, expected.end_layer)
            for at in range(expected.blocks):
                truth = block_content(held.spec.name, expected.first_block + at)
                due = truth.reshape(GEOMETRY.layers, GEOMETRY.page_bytes)[layers]
                if not np.array_equal(pages[:, at], due):
                    if message[:HEADER_BYTES].tobytes() == seal:
                        self._report("verdict", transfer, slot, True)
                    break
        return arrival

    # ------------------------------------------------------------ either

    def _ended(self, done: KvDone) -> None:
        key = (done.request_id, done.attempt)
        held = self._held.pop((done.side, key), None)
        wrong = 0
        if held is not None:
            spec = held.spec
            if done.side == "receive" and not done.error:
                numbers = range(spec.first_block, spec.blocks)
                wrong = sum(
                    not self._pool.holds(block, spec.name, number)
                    for block, number in zip(held.blocks, numbers, strict=True)
                )
            self._pool.give(held.blocks)
        self._report("end", done.side, *key, done.error, done.report.retries, wrong)

    def _arm(self, spec: Spec, ticket: Ticket) -> None:
        if spec.fault is not None and ticket.attempt == 0:
            self._shim.faults[spec.name] = spec.fault
        else:
            self._shim.faults.pop(spec.name, None)

    def _wake(self) -> None:
        os.write(self._wake_in, b"!")

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), act))

    def _bent(self, kind: str, request: str, transfer: int, index: int) -> None:
        self._report("bent", kind, request, transfer, index)

    def _report(self, *what: object) -> None:
        with self._lock:
            self._pipe.send(what)


def main(pipe: Connection, name: str, incarnation: str, *how: str) -> None:
    """`how`: as the last arguments of `Worker`."""
    Worker(pipe, name, incarnation, *how).run()

"""A KV service in a process of its own, driven over a pipe; and how tests drive it.

`fault`: "flip-first" damages one bit of the first data message after it was sealed, "flip-all" of
every one, wherever it lies, "oversize" makes the first longer than what D can have posted,
"swallow" answers nothing at all.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import cast

import msgspec
import numpy as np

from common.config import KvConfig
from common.kv import ucx
from common.kv.codec import Format
from common.kv.control import Identity
from common.kv.digest import HEADER_BYTES
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import KvDone
from common.kv.service import KvService
from common.messages import Ticket
from tests.faults.lent import Lent

LAYERS, BLOCKS, PAGE = 4, 64, 32_768
INSIDE = Format("float32", (2, 2, PAGE // 16), (2,))
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE, inside=INSIDE)
# A busy machine starves a process for seconds: only a test of silence may find one silent.
CONFIG = KvConfig(
    message_bytes=8 * LAYERS * PAGE,
    staging_mib=8,
    load_timeout_ms=4000.0,
    answer_ms=30_000.0,
    layer_groups=1,
)
WIRE_ONLY = msgspec.structs.replace(CONFIG, transports="tcp,self")


def filled(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, GEOMETRY.end, dtype=np.uint8)


def make_service(
    name: str, base: np.ndarray, config: KvConfig = CONFIG, fingerprint: str = "f"
) -> tuple[KvService, str]:
    service = KvService(
        Identity(name, f"inc-{name}", fingerprint), config, HostMemory(base, GEOMETRY)
    )
    return service, service.start()


def ticket(request_id: str, kv_address: str, lease_ms: float = 5000.0) -> Ticket:
    return Ticket(
        secret=os.urandom(16),
        request_id=request_id,
        attempt=0,
        fingerprint="f",
        prefill="p0",
        prefill_incarnation="inc-p0",
        decode="d0",
        decode_incarnation="inc-d0",
        kv_address=kv_address,
        lease_ms=lease_ms,
    )


def wait_for(check: Callable[[], object], seconds: float = 5.0) -> float:
    """Seconds it took. Fails the test when it never came."""
    start = time.monotonic()
    while not check():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.002)
    return time.monotonic() - start


def drained(service: KvService, seconds: float = 6.0) -> list[KvDone]:
    """The next ends, at least one."""
    return gathered(service.drain, 1, seconds)


def gathered(drain: Callable[[], list[KvDone]], count: int, seconds: float = 6.0) -> list[KvDone]:
    """At least `count` ends."""
    ends: list[KvDone] = []

    def enough() -> bool:
        ends.extend(drain())
        return len(ends) >= count

    wait_for(enough, seconds)
    return ends


def staging_used(service: KvService) -> int:
    core = service._core
    assert core is not None
    return core.incoming._staging.used + core.outgoing._staging.used


class Remote:
    """A service in another process."""

    def __init__(self, pipe: Connection, process: multiprocessing.process.BaseProcess) -> None:
        self._pipe = pipe
        self.process = process
        self.address: str = pipe.recv()

    def call(self, name: str, *args: object) -> object:
        self._pipe.send((name, args))
        if not self._pipe.poll(10):
            raise AssertionError("the other process does not answer")
        return self._pipe.recv()

    def offer_all(self, ticket: Ticket, blocks: list[int]) -> None:
        self.call("offer", ticket, len(blocks))
        self.call("progress", (ticket.request_id, 0), blocks, len(blocks))

    def ends(self) -> list[KvDone]:
        return gathered(lambda: cast("list[KvDone]", self.call("drain")), 1)


@contextmanager
def remote(
    name: str, seed: int = 1, fault: str = "", fingerprint: str = "f", config: KvConfig = CONFIG
) -> Iterator[Remote]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, name, seed, fault, fingerprint, config), daemon=True
    )
    process.start()
    try:
        yield Remote(ours, process)
    finally:
        if process.is_alive():
            ours.send(("exit", ()))
            process.join(5)
        process.kill()
        process.join()


def _serve(
    pipe: Connection, name: str, seed: int, fault: str, fingerprint: str, config: KvConfig
) -> None:
    _install(fault)
    base = filled(seed)
    service, address = make_service(name, base, config, fingerprint)
    pipe.send(address)
    while True:
        verb, args = pipe.recv()
        if verb == "exit":
            service.stop()
            return
        if verb == "staging":
            pipe.send(staging_used(service))
        elif verb == "holds":
            pipe.send(len(service._core.outgoing))  # type: ignore[union-attr]
        elif verb == "get_status":
            pipe.send(service.status)
        elif verb == "cpu":
            start = time.process_time()
            time.sleep(args[0])
            pipe.send((time.process_time() - start) / args[0])
        else:
            pipe.send(getattr(service, verb)(*args))


def _install(fault: str) -> None:
    places = Lent()
    places.install()
    original = ucx.Link.send
    left = {"flip-first": 1, "flip-all": 1 << 30, "oversize": 1}.get(fault, 0)

    def send(link: ucx.Link, buffer: np.ndarray, tag: int, done: ucx.Done) -> None:
        nonlocal left
        data = bool(tag & ucx.DATA_TAG)
        if data and fault == "swallow":
            return
        lent = places.message(buffer, tag) if data and left else None
        if data and left and (lent is not None or buffer.nbytes > HEADER_BYTES):
            left -= 1
            if lent is not None and fault != "oversize":
                lent[HEADER_BYTES + 999] ^= 4
            elif fault == "oversize":
                buffer = np.zeros(2 * CONFIG.message_bytes, np.uint8)
            else:
                buffer[buffer.nbytes // 2] ^= 4
        original(link, buffer, tag, done)

    ucx.Link.send = send  # type: ignore[method-assign,assignment]

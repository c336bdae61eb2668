"""A KV service in a process of its own, driven over a pipe; and how tests drive it.

`fault`: "flip-first" damages one bit of the first data message after it was sealed, "flip-all" of
every one, wherever it lies, "oversize" makes the first longer than what D can have posted,
"swallow" answers nothing at all, "no-executable-memory" leaves only the portable loops.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, cast

import msgspec
import numpy as np

from common.config import KvConfig
from common.kv.checksum.header import HEADER_BYTES
from common.kv.checksum.kernel import PORTABLE, kernel
from common.kv.compression.fp8 import PageFormat
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import KvDone, KvStatus
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.kv.staging.shared_segment import SharedSegment
from common.kv.store.results import StoreSize
from common.kv.transport import ucx
from common.messages import Ticket
from tests.component.common.kv.no_executable_memory import forbid_executable_memory
from tests.component.common.kv.stored import STORE_SLOTS, Stored
from tests.faults.loaned import LoanedMessages
from tests.rigs import messages

LAYERS, BLOCKS, PAGE = 4, 64, 32_768
PAGE_FORMAT = PageFormat("float32", (2, 2, PAGE // 16), (2,))
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE, page_format=PAGE_FORMAT)
# A busy machine starves a process for seconds: only a test of silence may find one silent.
CONFIG = KvConfig(
    message_bytes=8 * LAYERS * PAGE,
    staging_mib=8,
    load_timeout_ms=4000.0,
    answer_ms=30_000.0,
    layer_groups=1,
)
IDLE_WATCHED_S = 2.0
WIRE_ONLY = msgspec.structs.replace(CONFIG, transports="tcp,self")


def filled(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, GEOMETRY.end, dtype=np.uint8)


def make_service(
    name: str,
    base: np.ndarray,
    config: KvConfig = CONFIG,
    fingerprint: str = "f",
    secrets_file: str = "",
) -> tuple[KvService, str]:
    identity = WorkerIdentity(name, f"inc-{name}", fingerprint, secrets_file=secrets_file)
    size = StoreSize(STORE_SLOTS, config.store.ttl_s) if config.store.ram_mib else None
    service = KvService(identity, config, HostMemory(base, GEOMETRY), store=size)
    return service, service.start()


def ticket(request_id: str, kv_address: str, lease_ms: float = 5000.0) -> Ticket:
    secret = os.urandom(16)
    return messages.ticket(request_id, secret=secret, kv_address=kv_address, lease_ms=lease_ms)


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
    kv_thread = service._kv_thread
    assert kv_thread is not None
    return kv_thread.receive_side._pools.host.used + kv_thread.send_side._pools.host.used


def idle_turns(service: KvService) -> int:
    """How often the loop of its KV thread goes round in `IDLE_WATCHED_S`, once nothing is held.

    What a turn costs is for `make bench ARGS=kv` to say: a core that slept for a second may take
    milliseconds to wake.
    """
    kv_thread = service._kv_thread
    assert kv_thread is not None
    wait_for(lambda: not (kv_thread._ticking or kv_thread._status_pending))
    selector = kv_thread.loop._selector  # type: ignore[attr-defined]
    counted, select = 0, selector.select

    def count(seconds: float | None = None) -> object:
        nonlocal counted
        counted += 1
        return select(seconds)

    selector.select = count
    time.sleep(IDLE_WATCHED_S)
    del selector.select
    return counted


def linked(service: KvService, address: str) -> bool:
    """Whether there is a connection to this address; else another is begun."""
    service.connect(address)
    kv_thread = service._kv_thread
    assert kv_thread is not None
    return address in kv_thread.receive_side.connections.open_addresses()


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

    def status(self) -> KvStatus | None:
        """None before its KV thread has published one, which takes up to half a second."""
        return cast("KvStatus | None", self.call("get_status"))

    def ends(self) -> list[KvDone]:
        return gathered(lambda: cast("list[KvDone]", self.call("drain")), 1)


IDLE: list[tuple[Connection, multiprocessing.process.BaseProcess]] = []
"""Processes whose service stopped in good order, to be used again: a new process takes a second to
start, a new service in one that has loaded UCX takes 20 ms."""


@contextmanager
def remote(
    name: str, seed: int = 1, fault: str = "", fingerprint: str = "f", config: KvConfig = CONFIG
) -> Iterator[Remote]:
    reusable = fault != "no-executable-memory"  # which lasts until the process ends
    pipe, process = IDLE.pop() if IDLE and reusable else _start()
    pipe.send((name, seed, fault, fingerprint, config))
    orderly = False
    try:
        yield Remote(pipe, process)
        orderly = process.is_alive()
    finally:
        if orderly:
            pipe.send(("exit", ()))
            orderly = pipe.poll(5) and pipe.recv() == "stopped"
        if orderly and reusable:
            IDLE.append((pipe, process))
        else:
            process.kill()
            process.join()


def _start() -> tuple[Connection, multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_all, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return ours, process


def _serve_all(pipe: Connection) -> None:
    """One service after the other, until the test runner ends."""
    send, make = ucx.UcxLink.send, SharedSegment.__init__
    while True:
        _serve(pipe, *pipe.recv())
        ucx.UcxLink.send, SharedSegment.__init__ = send, make  # type: ignore[method-assign]
        pipe.send("stopped")


def _serve(
    pipe: Connection, name: str, seed: int, fault: str, fingerprint: str, config: KvConfig
) -> None:
    _install(fault)
    base = filled(seed)
    service, address = make_service(name, base, config, fingerprint)
    stored = Stored(service) if config.store.ram_mib else None
    pipe.send(address)
    while True:
        verb, args = pipe.recv()
        if verb == "exit":
            service.stop()
            return
        if verb.startswith("stored_"):
            pipe.send(getattr(stored, verb.removeprefix("stored_"))(*args))
        elif verb == "linked":
            pipe.send(linked(service, args[0]))
        else:
            pipe.send(_answer(service, base, verb, args))


def _answer(service: KvService, base: np.ndarray, verb: str, args: Any) -> object:
    match verb:
        case "portable":
            return kernel() is PORTABLE
        case "memory":
            return base
        case "staging":
            return staging_used(service)
        case "holds":
            return len(service._kv_thread.send_side)  # type: ignore[union-attr]
        case "asked":
            tickets = service._kv_thread.send_side._tickets  # type: ignore[union-attr]
            return len(tickets._by_transfer) + len(tickets._early)
        case "get_status":
            return service.status
        case "idle_turns":
            return idle_turns(service)
        case _:
            return getattr(service, verb)(*args)


def _install(fault: str) -> None:
    if fault == "no-executable-memory":
        forbid_executable_memory()
    places = LoanedMessages()
    places.install()
    original = ucx.UcxLink.send
    left = {"flip-first": 1, "flip-all": 1 << 30, "oversize": 1}.get(fault, 0)

    def send(link: ucx.UcxLink, buffer: np.ndarray, tag: int, done: ucx.Done) -> None:
        nonlocal left
        data = bool(tag & ucx.DATA_TAG)
        if data and fault == "swallow":
            return
        loan = places.message(buffer, tag) if data and left else None
        if data and left and (loan is not None or buffer.nbytes > HEADER_BYTES):
            left -= 1
            if loan is not None and fault != "oversize":
                loan[HEADER_BYTES + 999] ^= 4
            elif fault == "oversize":
                buffer = np.zeros(2 * CONFIG.message_bytes, np.uint8)
            else:
                buffer[buffer.nbytes // 2] ^= 4
        original(link, buffer, tag, done)

    ucx.UcxLink.send = send  # type: ignore[method-assign,assignment]

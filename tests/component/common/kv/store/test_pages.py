"""Memory gets its pages before it is written to, and keeps what is written meanwhile."""

from __future__ import annotations

import ctypes
import mmap
import threading

import numpy as np
import pytest

from common.kv.checksum.definition import Bytes
from common.kv.layout import HostMemory
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.kv.store import arena as arenas
from common.kv.store.pages import STEP_BYTES, populate
from common.kv.store.results import StoreSize
from tests.component.common.kv.service_peer import CONFIG, GEOMETRY, filled
from tests.component.common.kv.stored import STORE_SLOTS

SIZE = 3 * STEP_BYTES + 5 * mmap.PAGESIZE
WAIT_S = 10.0


@pytest.fixture
def memory() -> Bytes:
    """Of pages that the system has not handed out. It begins and ends inside a page."""
    region = mmap.mmap(-1, SIZE)
    region.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(region, np.uint8)[100:-100]


def resident(memory: Bytes) -> int:
    """How many of its pages are there."""
    first = memory.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    size = memory.ctypes.data + memory.nbytes - first
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    mincore = ctypes.CDLL(None).mincore
    assert not mincore(
        ctypes.c_void_p(first), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
    )
    return int((pages & 1).sum())


def test_all_of_it_gets_pages_and_stays_as_it_is(memory: Bytes) -> None:
    assert resident(memory) == 0
    memory[STEP_BYTES], memory[-1] = 3, 4
    populate(memory, threading.Event())
    assert resident(memory) == SIZE // mmap.PAGESIZE
    assert np.flatnonzero(memory).tolist() == [STEP_BYTES, memory.nbytes - 1]


def test_it_ends_when_it_is_stopped(memory: Bytes) -> None:
    stopped = threading.Event()
    stopped.set()
    populate(memory, stopped)
    assert resident(memory) == 0


def test_it_ends_where_the_system_gives_none(memory: Bytes) -> None:
    """Memory that may not be written to stands for a system that is too old."""
    page = mmap.PAGESIZE
    second = -(-memory.ctypes.data // page) * page
    protect = ctypes.CDLL(None).mprotect
    assert not protect(ctypes.c_void_p(second), ctypes.c_size_t(page), 1)
    populate(memory, threading.Event())
    assert resident(memory) < STEP_BYTES // page
    assert not protect(ctypes.c_void_p(second), ctypes.c_size_t(page), 3)


def test_a_service_has_its_stores_memory_handed_out_aside_until_it_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, str]] = []
    asking, ended = threading.Event(), threading.Event()

    def wait(memory: Bytes, stopped: threading.Event) -> None:
        asked.append((memory.nbytes, threading.current_thread().name))
        asking.set()
        assert stopped.wait(WAIT_S)
        ended.set()

    monkeypatch.setattr(arenas, "populate", wait)
    memory = HostMemory(filled(1), GEOMETRY)
    identity = WorkerIdentity("d1", "inc-d1", "f")
    service = KvService(identity, CONFIG, memory, store=StoreSize(STORE_SLOTS, ttl_s=300.0))
    service.start()
    assert asking.wait(WAIT_S)
    assert not ended.is_set()
    service.stop()
    assert ended.wait(WAIT_S)
    assert asked == [(STORE_SLOTS * GEOMETRY.block_bytes, "baton-pages")]

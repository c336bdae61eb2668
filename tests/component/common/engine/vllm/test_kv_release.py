"""Memory that is given back is the host's again, and zero where it is read."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import psutil
import pytest

from common.engine.vllm.kv_release import KvRelease, release

SIZE = 64 << 20


class Storage:
    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self.memory = memory

    def data_ptr(self) -> int:
        return int(self.memory.ctypes.data)

    def nbytes(self) -> int:
        return self.memory.nbytes


class Cache:
    """A tensor of the KV cache: a view of a storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def untyped_storage(self) -> Storage:
        return self._storage


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_the_pages_of_a_kv_cache_are_given_back_once_though_many_layers_view_them() -> None:
    memory = np.ones(SIZE, np.uint8)
    before = resident()
    worker, shared = KvRelease(), Storage(memory)
    layers = [Cache(shared), [Cache(shared), Cache(shared)]]
    worker.model_runner = type("Runner", (), {"kv_caches": layers})
    given = worker.release_kv_pages()
    assert SIZE - 2 * mmap.PAGESIZE <= given <= SIZE
    assert before - resident() > 0.9 * SIZE
    assert not memory[mmap.PAGESIZE : -mmap.PAGESIZE].any()
    memory[:] = 7
    assert memory.min() == 7


def test_what_lies_beside_it_on_the_same_page_stays() -> None:
    memory = np.full(4 * mmap.PAGESIZE, 5, np.uint8)
    address = int(memory.ctypes.data)
    inside = -address % mmap.PAGESIZE + 100
    assert release(address + inside, 2 * mmap.PAGESIZE) == mmap.PAGESIZE
    assert (memory == 5).sum() == 3 * mmap.PAGESIZE
    assert release(address + inside, 50) == 0


def test_memory_that_is_not_there_is_an_error() -> None:
    free = 1 << 46
    with pytest.raises(OSError, match="madvise: "):
        release(free, 16 * mmap.PAGESIZE)

"""Gives the memory of a sleeping engine's KV cache back to the host, on CPU.

vLLM mixes `KvRelease` into its worker (`worker_extension_cls`), so that its method can be called in
the engine's process. vLLM's own sleep mode is for devices.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from typing import Any

MADV_DONTNEED = 4
NAME = "common.engine.vllm.kv_release.KvRelease"


class KvRelease:
    """What vLLM's worker can do besides. Its `model_runner` has the KV cache."""

    model_runner: Any

    def release_kv_pages(self) -> int:
        """Returns how many bytes were given back. Nothing may use the KV meanwhile; what is read
        afterwards is zero until it is written, and each page costs a fault when it is used."""
        storages = {
            storage.data_ptr(): storage.nbytes()
            for cache in self.model_runner.kv_caches
            for storage in _storages(cache)
        }
        return sum(release(address, size) for address, size in storages.items())


def release(address: int, size: int) -> int:
    """Gives the whole pages of this private memory back. Raises OSError."""
    page = mmap.PAGESIZE
    start = -(-address // page) * page
    length = (address + size) // page * page - start
    if length <= 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_DONTNEED):
        error = ctypes.get_errno()
        raise OSError(error, f"madvise: {os.strerror(error)}")
    return length


def _storages(cache: Any) -> Iterator[Any]:
    """Of a tensor, or of the several tensors of a state layer."""
    for tensor in cache if isinstance(cache, list | tuple) else (cache,):
        yield tensor.untyped_storage()

"""CUDA as the KV layer uses it: streams, marks in them, page-locked memory.

A *mark* is a CUDA event. It blocks who waits for it instead of spinning.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from typing import Any, Protocol

import numpy as np
import torch

from common.kv.checksum.definition import Bytes
from common.kv.device.kernels import PageCopy, compile_for, copy_pages, keys_and_steps
from common.kv.layout import Mark

READ_ONLY = 8
"""cudaHostRegisterReadOnly."""


class CardStream(Protocol):
    """What is put on it runs in this order, later."""

    def words(self, count: int) -> torch.Tensor:
        """Words on the card for what runs on this stream alone: what a card does to memory when it
        is made, it does on a stream. Raises RuntimeError if the card has no room."""
        ...

    def copy_pages(
        self,
        copy: PageCopy,
        places: torch.Tensor,
        after: Mark | None,
        host: torch.Tensor | None,
    ) -> Mark:
        """Puts the copy on it, once `after` has passed. `places`: page-locked words that its
        `places` get first. `host`: page-locked words that the wire, which is on the card, is copied
        to or from. Returns a mark after all of it."""
        ...


class Card(Protocol):
    """One card, and the memory that it can reach."""

    def enter(self) -> None:
        """This thread works with the card from now on."""

    def stream(self) -> CardStream: ...

    def mark(self) -> Mark:
        """In the stream that the calling thread launches its work on: the engine's."""
        ...

    def order_after(self, mark: Mark) -> None:
        """What the calling thread launches from now on runs after the mark."""

    def locked_words(self, count: int) -> torch.Tensor:
        """Page-locked ones in host memory."""
        ...

    def bytes_on_card(self, size: int) -> torch.Tensor:
        """For any stream, from now on. Raises RuntimeError if the card has no room."""
        ...

    def lock_pages(self, memory: Bytes) -> bool:
        """Lets the card read and write this host memory, or only read it if it is not writable, for
        as long as the array lives. Returns whether it can."""
        ...


class CudaCard:
    """One GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def enter(self) -> None:
        torch.cuda.set_device(self._device)

    def stream(self) -> CudaStream:
        return CudaStream(self._device)

    def mark(self) -> Mark:
        return _recorded(torch.cuda.current_stream(self._device))

    def order_after(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)

    def locked_words(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int64, pin_memory=True)

    def bytes_on_card(self, size: int) -> torch.Tensor:
        found = torch.zeros(size, dtype=torch.uint8, device=self._device)
        torch.cuda.synchronize(self._device)
        return found

    def lock_pages(self, memory: Bytes) -> bool:
        with torch.cuda.device(self._device):
            address, flags = memory.ctypes.data, 0 if memory.flags.writeable else READ_ONLY
            if int(_cudart().cudaHostRegister(address, memory.nbytes, flags)) != 0:
                with contextlib.suppress(RuntimeError):  # torch raises CUDA's last error once
                    torch.ones(1, device=self._device)
                return False
            weakref.finalize(memory, _unlock_pages, address).atexit = False
            return True


class CudaStream:
    """A stream of its own, beside the engine's."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._device, self._keys = device, _keys(device)

    def words(self, count: int) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            return torch.empty(count, dtype=torch.int64, device=self._device)

    def copy_pages(
        self,
        copy: PageCopy,
        places: torch.Tensor,
        after: Mark | None,
        host: torch.Tensor | None,
    ) -> Mark:
        if after is not None:
            assert isinstance(after, torch.cuda.Event)
            self._stream.wait_event(after)
        with torch.cuda.stream(self._stream):
            copy.places.copy_(places, non_blocking=True)
            if host is not None and not copy.gathers:
                copy.wire.copy_(host, non_blocking=True)
            copy_pages(copy, self._keys)
            if host is not None and copy.gathers:
                host.copy_(copy.wire, non_blocking=True)
        return _recorded(self._stream)


def words_of(data: Bytes | torch.Tensor) -> torch.Tensor:
    """The same memory, flat, as words. The caller keeps `data` alive."""
    if isinstance(data, torch.Tensor):
        return data.view(torch.int64)
    if data.flags.writeable:
        return torch.from_numpy(data).view(torch.int64)
    # torch has no tensors that must not be written, and warns.
    pointer = (ctypes.c_uint8 * data.nbytes).from_address(data.ctypes.data)
    return torch.from_numpy(np.ctypeslib.as_array(pointer)).view(torch.int64)


def _recorded(stream: torch.cuda.Stream) -> Mark:
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    mark: Mark = event
    return mark


@functools.cache
def _keys(device: torch.device) -> torch.Tensor:
    """Of the kernel, which is ready once they are there."""
    keys = keys_and_steps().to(device)
    compile_for(device, keys)
    return keys


def _cudart() -> Any:
    return torch.cuda.cudart()


def _unlock_pages(address: int) -> None:
    _cudart().cudaHostUnregister(address)

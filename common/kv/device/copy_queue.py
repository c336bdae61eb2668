"""Copies on one stream of a card, in order, and who waits for them.

Theory of operation: the *control words* of a copy say where its pages are, which goes to the card,
and take the sum, which the card writes. They are page-locked; they, and the memory that is
copied, belong to the copy until it has run; only then is `done` called. The KV thread looks for
copies that have run whenever UCX had something to do, and a thread of the queue's own waits for
each, so that an idle KV thread wakes up as well.

What goes to host memory or comes from there passes through *scratch* memory on the card, between
which and the host a copy engine of the card copies. The kernel could reach the host itself, as
fast; but it would occupy the card for as long as the bus takes, and a step of the engine beside it
took up to five times as long. What the kernel leaves of the sum is in such memory, too. The stream
orders its uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from common.kv.checksum.definition import Bytes, Sum
from common.kv.device.card import Card, words_of
from common.kv.device.kernels import (
    PLACE_WORDS,
    SUM_WORDS,
    PageCopy,
    joined_sums,
    programs,
    write_places,
)
from common.kv.device.pages import WORD_BYTES, CardPages
from common.kv.layout import Mark


class _Control(NamedTuple):
    """The control words of a copy."""

    words: torch.Tensor
    """`SUM_WORDS` of the sum, and then those of `PageCopy.places`, so that both begin where the
    kernels were compiled for. Page-locked."""
    seen: NDArray[np.int64]
    """The same memory."""
    on_card: torch.Tensor
    """As many, of which the places are used."""


class _Running(NamedTuple):
    mark: Mark
    control: _Control
    wire: torch.Tensor | Bytes
    """Kept alive."""
    done: Callable[[Sum], None]


class CopyQueue:
    """All methods run on one asyncio loop, but `last` and `close`."""

    def __init__(self, card: Card, paged: torch.Tensor, *, gathers: bool) -> None:
        """`paged`: words of the whole allocation. `gathers`: out of its pages, else into them."""
        self._card = card
        self._paged = paged
        self._gathers = gathers
        self._stream = card.stream()
        #: Control words that no copy uses, by their number.
        self._free: defaultdict[int, list[_Control]] = defaultdict(list)
        self._scratch, self._sums = self._stream.words(0), self._stream.words(0)
        self._running: deque[_Running] = deque()
        self._marks: queue.SimpleQueue[Mark | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: After the newest copy.
        self.last: Mark | None = None

    def reserve(self, size: int) -> None:
        """Scratch memory for messages of so many bytes. Raises RuntimeError if the card has no room
        for it."""
        self._scratch = self._stream.words(-(-size // WORD_BYTES))

    def start(
        self,
        pages: CardPages,
        block_ids: NDArray[np.int64],
        wire: torch.Tensor | Bytes,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        """Copies these layers of the blocks, once `after` has passed. `wire`: memory that the card
        reaches, and no other copy's until `done`, which is called once, later."""
        count = PLACE_WORDS + len(block_ids)
        places = slice(SUM_WORDS, SUM_WORDS + count)
        control = self._take_control(places.stop)
        starts = pages.starts(block_ids, layers.start)
        write_places(control.seen[places], pages.layer_step, pages.runs, starts)
        words = words_of(wire)
        host = words if isinstance(wire, np.ndarray) else None
        if host is not None and len(host) > len(self._scratch):
            raise ValueError(f"{wire.nbytes} bytes in one message, and less was reserved")
        copy = PageCopy(
            paged=self._paged,
            wire=words if host is None else self._scratch[: len(words)],
            places=control.on_card[:count],
            sums=self._sums_of(wire.nbytes),
            total=control.words[:SUM_WORDS],
            layers=len(layers),
            runs=pages.runs,
            gathers=self._gathers,
        )
        self.last = mark = self._stream.copy_pages(copy, control.words[places], after, host)
        self._running.append(_Running(mark, control, wire, done))
        self._wait_for(mark)

    def poll(self) -> None:
        """Calls `done` of every copy that has run. Raises RuntimeError if the card has failed."""
        while self._running and self._running[0].mark.query():
            ended = self._running.popleft()
            total = joined_sums(ended.control.seen[:SUM_WORDS])
            self._free[len(ended.control.seen)].append(ended.control)
            ended.done(total)

    def close(self) -> None:
        """Returns when every copy has run; none is told of any more. Idempotent."""
        self._marks.put(None)
        running, self._running = self._running, deque()
        for one in running:
            one.mark.synchronize()

    def _sums_of(self, size: int) -> torch.Tensor:
        """Memory for what the kernel leaves of the sum of so many bytes. The copies before use what
        they were given, on the same stream."""
        words = programs(size) * SUM_WORDS
        if words > len(self._sums):
            self._sums = self._stream.words(words)
        return self._sums

    def _take_control(self, count: int) -> _Control:
        """With so many words at least."""
        room = 1 << max(10, (count - 1).bit_length())
        if self._free[room]:
            return self._free[room].pop()
        words = self._card.locked_words(room)
        return _Control(words, words.numpy(), self._stream.words(room))

    def _wait_for(self, mark: Mark) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._wake, args=(loop,), name="baton-kv-card", daemon=True
            )
            self._thread.start()
        self._marks.put(mark)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread that waits."""
        while (mark := self._marks.get()) is not None:
            with contextlib.suppress(RuntimeError):  # `poll` raises the card's
                mark.synchronize()
            try:
                loop.call_soon_threadsafe(self.poll)
            except RuntimeError:  # the loop is closed
                return

"""A card whose streams run as late as they may, in host memory.

What is put on a stream runs when somebody waits for it, and not before: so whoever looks at the
result of a copy without waiting for it, lets it begin before the work that it needs, or uses memory
anew that a copy still owns, gets other bytes than on a card that happens to be quick. `hold` keeps
those who wait until `let_go`.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from common.kv.checksum.definition import Bytes
from common.kv.checksum.kernel import sum_of
from common.kv.device.kernels import (
    PLACE_WORDS,
    ROW_WORDS,
    SUM_WORDS,
    PageCopy,
    programs,
)
from common.kv.layout import Mark

FEW_WORDS = 4096
"""For which a card always has room."""
_lock = threading.RLock()


class LateMark:
    """A point in a late stream."""

    def __init__(self, card: LateCard, stream: LateStream, at: int) -> None:
        self._card, self._stream, self._at = card, stream, at

    def query(self) -> bool:
        return self._stream.ran >= self._at

    def synchronize(self) -> None:
        self._card.go.wait()
        self.run()

    def run(self) -> None:
        with _lock:
            self._stream.run(self._at)


class LateStream:
    """What is put on it, and how much of it has run."""

    def __init__(self, card: LateCard) -> None:
        self._card = card
        self._waiting: deque[Callable[[], object]] = deque()
        self.ran = 0

    def put(self, work: Callable[[], object]) -> None:
        with _lock:
            self._waiting.append(work)

    def words(self, count: int) -> torch.Tensor:
        """What a card does to new memory, it does as late as this stream lets it, and while other
        streams are at work."""
        if not self._card.has_room and count > FEW_WORDS:
            raise RuntimeError("out of memory")
        fresh = torch.zeros(count, dtype=torch.int64)
        self._card.fresh.append((self, fresh))
        self.put(lambda: self._card.settle(fresh))
        return fresh

    def copy_pages(
        self,
        copy: PageCopy,
        places: torch.Tensor,
        after: Mark | None,
        host: torch.Tensor | None,
    ) -> LateMark:
        if after is not None:
            self.wait(after)
        self.put(lambda: copy.places.copy_(places))
        if host is not None and not copy.gathers:
            self.put(lambda: copy.wire.copy_(host))
        self.put(lambda: copy_slowly(copy))
        self.put(lambda: copy.total.copy_(copy.sums[: len(copy.total)]))
        if host is not None and copy.gathers:
            self.put(lambda: host.copy_(copy.wire))
        return self.record()

    def wait(self, mark: Mark) -> None:
        assert isinstance(mark, LateMark)
        self.put(mark.run)

    def record(self) -> LateMark:
        with _lock:
            return LateMark(self._card, self, self.ran + len(self._waiting))

    def run(self, upto: int) -> None:
        while self.ran < upto and self._waiting:
            work = self._waiting.popleft()
            self._card.disturb(self)
            work()
            self.ran += 1


class LateCard:
    """As `Card`."""

    def __init__(self) -> None:
        self.engine = LateStream(self)
        self.locked: list[tuple[int, bool]] = []
        """Bytes of memory that was page-locked, and whether it was writable."""
        self.has_room = self.has_staging = self.locks = True
        self.fresh: list[tuple[LateStream, torch.Tensor]] = []
        """New memory, and whose it is."""
        self.go = threading.Event()
        self.go.set()

    def hold(self) -> None:
        self.go.clear()

    def let_go(self) -> None:
        self.go.set()

    def settle(self, fresh: torch.Tensor) -> None:
        if any(one is fresh for _, one in self.fresh):
            self.fresh = [(stream, one) for stream, one in self.fresh if one is not fresh]
            fresh.fill_(7)

    def disturb(self, stream: LateStream) -> None:
        """Before each piece of work on this stream the others get on with new memory."""
        for other, fresh in self.fresh:
            if other is not stream:
                fresh.fill_(7)

    def enter(self) -> None:
        """Host memory is everybody's."""

    def stream(self) -> LateStream:
        return LateStream(self)

    def mark(self) -> LateMark:
        return self.engine.record()

    def order_after(self, mark: Mark) -> None:
        self.engine.wait(mark)

    def locked_words(self, count: int) -> torch.Tensor:
        return torch.full((count,), 9, dtype=torch.int64)

    def bytes_on_card(self, size: int) -> torch.Tensor:
        if not self.has_staging:
            raise RuntimeError("out of memory")
        return torch.full((size,), 5, dtype=torch.uint8)

    def lock_pages(self, memory: Bytes) -> bool:
        self.locked.append((memory.nbytes, memory.flags.writeable))
        return self.locks


def copy_slowly(copy: PageCopy) -> None:
    """What the kernel does, run by run."""
    paged, wire = (words.numpy().view(np.uint64) for words in (copy.paged, copy.wire))
    words, runs = copy.places.tolist(), copy.runs
    layer_step, steps, blocks = words[0], words[1:PLACE_WORDS], words[PLACE_WORDS:]
    assert steps == [runs.words // ROW_WORDS, runs.inner, runs.outer_step, runs.inner_step]
    assert len(copy.sums) >= programs(wire.nbytes) * SUM_WORDS
    at = 0
    for layer, block, outer, inner in itertools.product(
        range(copy.layers), blocks, range(runs.outer), range(runs.inner)
    ):
        start = layer * layer_step + block + outer * runs.outer_step + inner * runs.inner_step
        run = paged[start : start + runs.words]
        if copy.gathers:
            wire[at : at + runs.words] = run
        else:
            run[:] = wire[at : at + runs.words]
        at += runs.words
    sums = copy.sums.numpy().view(np.uint64)
    sums[:] = 0
    total = np.frombuffer(sum_of(wire[:at].view(np.uint8)), np.uint64)
    sums[: len(total)] = total

"""What stands in for an engine, where its steps are to be timed."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.bench.gpu.pair import CUDA

STEP_S = 0.01
WARM_UP_STEPS = 10


class Engine:
    """Stands in for an engine: each step launches its work and waits for it, as sampling does."""

    def __init__(self, device: str) -> None:
        import torch

        side = 4096 if device == CUDA else 256
        self._matrix = torch.ones(side, side, dtype=torch.bfloat16, device=device)
        self._out = torch.empty_like(self._matrix)
        self._on_card = device == CUDA
        self._products = 1
        self._products = max(1, round(STEP_S / min(self._timed() for _ in range(20))))

    def run(self, count: int, between: Callable[[], None]) -> list[float]:
        """Seconds of each of so many steps; `between` is called before each, and not counted."""
        for _ in range(WARM_UP_STEPS):
            between()
            self._timed()
        seconds = []
        for _ in range(count):
            between()
            seconds.append(self._timed())
        return seconds

    def _timed(self) -> float:
        import torch

        start = time.perf_counter()
        for _ in range(self._products):
            torch.mm(self._matrix, self._matrix, out=self._out)
        if self._on_card:
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - start

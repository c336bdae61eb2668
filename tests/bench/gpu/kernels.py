"""Copy rates of the card, and the kernel that gathers and scatters pages, with the digest and
without; and what NVML reads of a busy card and of an idle one."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from common.worker.gpu import open_reader
from tests.bench.gpu.memory import KIB, MIB, layers_first, some_blocks
from tests.bench.gpu.pair import Tools
from tests.bench.gpu.report import Check, Outcome, Row, compared, value_of

if TYPE_CHECKING:
    from common.kv.device.pages import CardPages

SIZE = 64 * MIB
LAYERS, HEADS, TOKENS = 16, 4, 16
POOL_BYTES = 1 << 30
WARM_UPS, RUNS, ROUNDS = 3, 30, 3
GIGA = 1e9
WORD_BYTES = 8
NVML_S = 1.5
"""NVML's figure is of at most the last second."""
D2D, D2H, H2D = "device to device", "device to pinned host", "pinned host to device"


def rate(launch: Callable[[], object], size: int = SIZE) -> float:
    """GB/s of what `launch` puts on the stream: the best of `ROUNDS`."""
    import torch

    for _ in range(WARM_UPS):
        launch()
    best = 0.0
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(RUNS):
            launch()
        torch.cuda.synchronize()
        best = max(best, RUNS * size / (time.perf_counter() - start) / GIGA)
    return best


def copies(tools: Tools, outcome: Outcome) -> None:
    import torch

    one = torch.empty(SIZE, dtype=torch.uint8, device=tools.device).random_(0, 255)
    other = torch.empty_like(one)
    pinned = torch.empty(SIZE, dtype=torch.uint8).pin_memory()
    found = {
        D2D: rate(lambda: other.copy_(one)),
        D2H: rate(lambda: pinned.copy_(one, non_blocking=True)),
        H2D: rate(lambda: one.copy_(pinned, non_blocking=True)),
    }
    for what, value in found.items():
        row = compared("copies", what, value, "GB/s", against=D2D, base=found[D2D])
        outcome.rows.append(row)
        print(f"  {what} {value:.0f} GB/s", flush=True)


class Launcher:
    """The product's kernel over a pool of pages, of which it copies some."""

    def __init__(self, pages: CardPages, wire: Any, device: str) -> None:
        """`wire`: as many bytes as are to be copied, on the card or page-locked in host memory."""
        import torch

        from common.kv.device.kernels import (
            PLACE_WORDS,
            SUM_WORDS,
            keys_and_steps,
            programs,
            write_places,
        )

        self._pages, geometry = pages, pages.geometry
        self._pool = torch.empty(pages.own.end, dtype=torch.uint8, device=device).random_(0, 255)
        self.paged, self.wire = self._pool.view(torch.int64), wire.view(torch.int64)
        blocks = some_blocks(geometry, wire.numel() // geometry.block_bytes, seed=1)
        self._blocks = np.array(blocks, np.int64)
        places = np.zeros(PLACE_WORDS + len(blocks), np.int64)
        write_places(places, pages.layer_step, pages.runs, pages.starts(self._blocks, 0))
        self._places = torch.from_numpy(places).to(device)
        words = programs(self.wire.nbytes) * SUM_WORDS
        self._sums = torch.zeros(words, dtype=torch.int64, device=device)
        self._total = torch.zeros(SUM_WORDS, dtype=torch.int64, pin_memory=True)
        self._keys = keys_and_steps().to(device)

    def launch(self, *, gathers: bool, summing: bool) -> None:
        from common.kv.device.kernels import PageCopy, copy_pages

        copy = PageCopy(
            paged=self.paged,
            wire=self.wire,
            places=self._places,
            sums=self._sums,
            total=self._total,
            layers=self._pages.geometry.layers,
            runs=self._pages.runs,
            gathers=gathers,
        )
        copy_pages(copy, self._keys, summing=summing)

    def sum_and_bytes(self) -> tuple[bytes, bytes]:
        """The sum that the kernel finds while it gathers, and that of the host's copying loop."""
        import torch

        from common.kv.checksum.kernel import sum_of
        from common.kv.device.kernels import joined_sums

        self.launch(gathers=True, summing=True)
        torch.cuda.synchronize()
        parts = self._pages.split(self._blocks)
        places = (torch.from_numpy(part).to(self._pool.device) for part in parts)
        expected = self._pages.view(self._pool)[:, *places].flatten()
        if not torch.equal(expected.cpu(), self.wire.view(torch.uint8).cpu()):
            return b"the bytes differ", b""
        return joined_sums(self._total.numpy()), sum_of(expected.cpu().numpy())


def kernels(tools: Tools, outcome: Outcome) -> None:
    import torch

    from common.kv.device.pages import CardPages, TokenPage

    on_card = torch.empty(SIZE, dtype=torch.uint8, device=tools.device)
    pinned = torch.empty(SIZE, dtype=torch.uint8).pin_memory()
    for page_bytes in (16 * KIB, 64 * KIB):
        own = layers_first(LAYERS, POOL_BYTES // LAYERS // page_bytes, page_bytes)
        token = TokenPage(HEADS, TOKENS, page_bytes // HEADS // TOKENS, tokens_first=True)
        forms = {"pages": CardPages(own), "canonical blocks": CardPages(own, token)}
        for form, pages in forms.items():
            for where, wire in (("device", on_card), ("pinned", pinned)):
                launcher = Launcher(pages, wire, tools.device)
                _kernel(tools, outcome, launcher, f"{form} of {page_bytes // KIB} KiB", where)
            torch.cuda.empty_cache()


def _kernel(tools: Tools, outcome: Outcome, launcher: Launcher, page: str, where: str) -> None:
    found, expected = launcher.sum_and_bytes()
    what = f"kernel, {page}, {where}: bytes and sum as the host has them"
    outcome.checks.append(Check(what, found == expected))
    for gathers, copied in ((True, D2H), (False, H2D)):
        against = D2D if where == "device" else copied
        base = value_of(tools.earlier, "copies", against)
        verb = "gather to" if gathers else "scatter from"
        rates = []
        for summing in (False, True):
            launch = partial(launcher.launch, gathers=gathers, summing=summing)
            rates.append(rate(launch))
            what = f"{verb} {where}, {page}, {'with' if summing else 'no'} digest"
            row = compared("kernels", what, rates[-1], "GB/s", against=against, base=base)
            outcome.rows.append(row)
            print(f"  {what} {row.value:.0f} GB/s", flush=True)
        cost = (rates[0] / rates[1] - 1) * 100
        what = f"the digest adds to {verb} {where}, {page}"
        outcome.rows.append(Row("kernels", what, cost, "%"))


def nvml(tools: Tools, outcome: Outcome) -> None:
    import torch

    reader = open_reader()
    matrix = torch.ones(4096, 4096, dtype=torch.bfloat16, device=tools.device)
    until = time.monotonic() + NVML_S
    while time.monotonic() < until:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
    busy = reader.read()
    time.sleep(NVML_S)
    idle = reader.read()
    for name, reading in (("busy", busy), ("idle", idle)):
        print(f"  {name}: {reading}", flush=True)
        outcome.rows.append(Row("nvml", f"kernels run while the card is {name}", reading.busy, ""))
    outcome.checks.append(
        Check("NVML tells a busy card from an idle one", busy.busy > idle.busy, f"{busy}, {idle}")
    )

"""What cells cost: `python -m tests.simulation.cells_speed`.

Each row has more cells of `WORKERS` workers, up to 16,000 workers in 64. The gateway's core chooses
the cell of each request by its tenant, as HTTP asks it to: it looks the fleet up before, and says
that the client is gone when the answer is whole. The cell's router core then plays the whole cycle
of one request with a queue behind it. A tick comes ten times a second; it is measured with `LIVE`
requests that wait, in whichever cells they are, and without any. CPU is that of the process, the
best of `SPANS` spans. The ratios are to the first row: what costs the same in each row does not
grow with the number of cells.
`baseline` is a gateway without cells, in the same run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from itertools import count

from common.config import GatewayConfig
from common.messages import Delta, Fleet, Placed, Sampling
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.auth.caller import Caller
from services.gateway.cells.core import CellsCore
from services.gateway.requests.events import (
    Closed,
    FromRouter,
    Opened,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
)
from services.gateway.streams.answer import Collected
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from tests.simulation.router_speed import Drive

WORKERS = 250
QUEUE = 100
TENANTS = 2_000
CYCLES = 2_000
WARM = 2 * TENANTS
SPANS = 10
LIVE = 500
ROWS = (2, 8, 32, 64)
FLEET = Fleet(ready=True, prefill_ready=1, decode_ready=2, max_model_len=100, model="m")
SPEC = RequestSpec(Kind.CHAT, "r", "m", 0, list(range(64)), Sampling(max_tokens=50))


class Gateway:
    """A gateway's core with so many cells (0: none), and so many requests that wait."""

    def __init__(self, cells: int, live: int = LIVE) -> None:
        names = [f"c{n}" for n in range(cells)]
        self.core = CellsCore(GatewayConfig(max_streams=100_000), 100, dict.fromkeys(names, 1.0))
        self.ids = count()
        self.chosen: Counter[str] = Counter()
        for cell in names or [""]:
            self.core.handle(RouterUp(), 1.0, cell)
            self.core.handle(FromRouter(FLEET), 1.0, cell)
        for _ in range(live):
            self.open(next(self.ids))

    def open(self, number: int) -> tuple[str, str]:
        """Returns the request's id and its cell."""
        spec = RequestSpec(SPEC.kind, f"r{number}", "m", 0, SPEC.prompt_ids, SPEC.sampling)
        answer = Collected(lambda: None)
        stream = TextStream(Journal([1], 50), spec.sampling, Letters(), answer, stops=())
        caller = Caller(key_id="k", tenant=f"t{number % TENANTS}")
        (action,) = self.core.handle(Opened(spec, stream, answer, caller), 1.0)
        assert isinstance(action, ToRouter)
        return spec.request_id, action.cell

    def cycle(self) -> None:
        """A request from its arrival to its end, with eight steps of tokens."""
        fleet = self.core.fleet_of("m")
        assert fleet is not None
        request_id, cell = self.open(next(self.ids))
        self.chosen[cell] += 1
        worker = f"d0|of-{cell}"
        placed = Placed(
            request_id=request_id, attempt=1, decode="d0", decode_incarnation=f"of-{cell}"
        )
        self.core.handle(FromRouter(placed), 1.0, cell)
        for index in range(8):
            end = "length" if index == 7 else ""
            delta = Delta(request_id, 1, index, [97], finish_reason=end)
            self.core.handle(Stepped(worker.encode(), [delta]), 1.0)
        self.core.handle(Closed(request_id, "client gone"), 1.0)

    def tick(self) -> None:
        self.core.handle(Tick(), 1.0)


class Letters:
    def push(self, token_ids: list[int]) -> str:
        return "x" * len(token_ids)

    def flush(self) -> str:
        return ""


def best(once: Callable[[], object], times: int) -> float:
    """Seconds that one of `times` calls takes."""
    spans = []
    for _ in range(SPANS):
        start = time.process_time()
        for _ in range(times // SPANS):
            once()
        spans.append(time.process_time() - start)
    return min(spans) / (times // SPANS)


def routers(cells: int) -> list[float]:
    """Seconds that each cell's router takes for a request."""
    seconds = []
    for _ in range(cells):
        drive = Drive(WORKERS)
        while len(drive.core.tables.waiting) < QUEUE:
            drive.submit()
        seconds.append(best(drive.cycle, CYCLES // 4))
    return seconds


def main() -> None:
    plain = best(Gateway(0).cycle, CYCLES)
    print(f"baseline, a gateway without cells: {plain * 1e6:.1f} us a request of 8 steps")
    first: tuple[float, ...] = ()
    for cells in ROWS:
        each = routers(cells)
        gateway, idle = Gateway(cells), Gateway(cells, live=0)
        best(gateway.cycle, WARM)
        opened = best(gateway.cycle, CYCLES)
        ticked, rested = best(gateway.tick, 200), best(idle.tick, 200)
        figures = (sum(each) / cells, max(each), opened, ticked)
        first = first or figures
        mean, most, opened, ticked = figures
        share = max(gateway.chosen.values()) / (sum(gateway.chosen.values()) / cells)
        ratios = ", ".join(f"{a / b:.2f}" for a, b in zip(figures, first, strict=True))
        print(
            f"{cells:3} cells, {cells * WORKERS:6} workers: router {mean * 1e3:.3f} ms a request "
            f"(worst cell {most * 1e3:.3f}), gateway {opened * 1e6:.1f} us "
            f"({opened / plain:.2f} x the baseline), its tick {ticked * 1e6:.0f} us "
            f"({rested * 1e6:.1f} without requests); "
            f"busiest cell {share:.2f} x the mean; to the first row {ratios}",
            flush=True,
        )


if __name__ == "__main__":
    main()

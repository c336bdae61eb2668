"""Parts of `make gpu` for a test of its processes, which can import them from here: one that ends
well, and some that do not."""

from __future__ import annotations

import os
import time

from tests.bench.gpu.pair import Tools
from tests.bench.gpu.report import Outcome, Row

LIMIT_S = 60.0
DOUBLED = Row("sums", "twice 21", 42.0, "")


def near_asks(tools: Tools, outcome: Outcome) -> None:
    tools.pipe.send(21)
    outcome.rows.append(Row("sums", "twice 21", tools.pipe.recv(), ""))


def far_doubles(tools: Tools) -> None:
    while True:
        tools.pipe.send(2.0 * tools.pipe.recv())


def near_raises(tools: Tools, outcome: Outcome) -> None:
    outcome.rows.append(DOUBLED)
    raise RuntimeError("the card is gone")


def near_waits(tools: Tools, outcome: Outcome) -> None:
    time.sleep(LIMIT_S)


def far_dies(tools: Tools) -> None:
    os._exit(7)

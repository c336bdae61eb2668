"""How soon an abort frees both sides of a handoff, by the phase it comes in: on the KV layer alone,
then on engines (`aborts_engine`).

P is a process of its own. Each try aborts on D and stops the clock when P holds nothing and neither
side has staging in use; asking P costs a pipe's round trip, which is measured too and named.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import numpy as np

from common.kv.service import KvService
from tests.bench import aborts_engine
from tests.component.common.kv.service_peer import (
    GEOMETRY,
    Remote,
    drained,
    make_service,
    remote,
    staging_used,
    ticket,
    wait_for,
)

TRIES = 200
BLOCKS = 20
PHASES = ("parked", "offered", "moving", "any")
SETTLE_MS = {"parked": 5.0, "offered": 5.0, "moving": 2.0}
TARGET_MS = 250.0


def main() -> None:
    decode, _ = make_service("d0", np.zeros(GEOMETRY.end, np.uint8))
    with remote("p0") as prefill:
        _move(decode, prefill, "warm")
        pipe = [_timed(lambda: prefill.call("holds")) for _ in range(TRIES)]
        print(f"one question to P: p50 {statistics.median(pipe):.2f} ms")
        print(f"   phase  tries  p50 ms  p99 ms   worst  (target {TARGET_MS:.0f} ms)")
        for phase in PHASES:
            times = sorted(_abort(decode, prefill, phase, i) for i in range(TRIES))
            print(
                f"{phase:>8} {TRIES:>6} {statistics.median(times):7.1f} "
                f"{times[int(TRIES * 0.99) - 1]:7.1f} {times[-1]:7.1f}"
            )
    decode.stop()
    aborts_engine.main()


def _abort(decode: KvService, prefill: Remote, phase: str, number: int) -> float:
    name = f"{phase}-{number}"
    handed = ticket(name, prefill.address)
    ids = list(range(BLOCKS))
    if phase != "parked":
        prefill.call("offer", handed, BLOCKS)
    if phase in ("moving", "any"):
        prefill.call("progress", (name, 0), ids, BLOCKS if phase == "any" else BLOCKS // 2)
    decode.fetch(handed, 0, ids)
    time.sleep(SETTLE_MS.get(phase, random.random() * 20) / 1000)

    def free() -> None:
        decode.release((name, 0), "client gone")
        prefill.call("release", (name, 0), "client gone")
        drained(decode)
        wait_for(lambda: prefill.call("holds") == 0)
        wait_for(lambda: staging_used(decode) == 0 and prefill.call("staging") == 0)

    taken = _timed(free)
    prefill.call("drain")
    return taken


def _move(decode: KvService, prefill: Remote, name: str) -> None:
    handed = ticket(name, prefill.address)
    decode.fetch(handed, 0, [0])
    prefill.offer_all(handed, [0])
    drained(decode)
    prefill.ends()


def _timed(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return (time.perf_counter() - start) * 1000

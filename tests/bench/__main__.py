"""`make bench`: runs the benchmarks named on the command line, or all."""

from __future__ import annotations

import argparse
import signal
import sys

from tests.bench import (
    aborts,
    adapters,
    balance,
    canonical,
    checkpoint,
    compression,
    curve,
    guard,
    handoff,
    idle,
    jobs,
    kv,
    kv_wire,
    matrix,
    moves,
    overload,
    planner,
    prefetch,
    restart,
    speculation,
    store_disk,
    store_seal,
)
from tests.bench.gateway import pooling, serve
from tests.bench.gateway import table as gateway

BENCHES = {
    "guard": guard.main,
    "gateway": gateway.main,
    "gateway-serve": serve.main,
    "pooling": pooling.main,
    "idle": idle.main,
    "kv": kv.main,
    "kv-wire": kv_wire.main,
    "handoff": handoff.main,
    "aborts": aborts.main,
    "moves": moves.main,
    "checkpoint": checkpoint.main,
    "adapters": adapters.main,
    "overload": overload.main,
    "balance": balance.main,
    "jobs": jobs.main,
    "canonical": canonical.main,
    "matrix": matrix.main,
    "compression": compression.main,
    "curve": curve.main,
    "planner": planner.main,
    "prefetch": prefetch.main,
    "restart": restart.main,
    "speculation": speculation.main,
    "store": store_disk.main,
    "store-seal": store_seal.main,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHES)}")
    names = parser.parse_args().names or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(BENCHES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # with its fleets
    for name in names:
        print(f"== {name}")
        BENCHES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`kv` over wires as fast as common network cards, where a copy costs what it costs between hosts:
on a loopback the transport itself keeps most of two cores busy."""

from __future__ import annotations

import subprocess

from tests.wire import ROOT, over, unavailable

GBITS = (10, 25)


def main() -> None:
    if why := unavailable():
        print(f"not measured  over wires of {GBITS} Gbit/s: {why}")
        return
    for gbits in GBITS:
        print(f"over a wire of {gbits} Gbit/s, {gbits / 8:.2f} GB/s:", flush=True)
        subprocess.run(over(gbits, "tests.bench.kv", "tcp,self"), cwd=ROOT, check=True)

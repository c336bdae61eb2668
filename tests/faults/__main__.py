"""`make faults-kv`: ten thousand handoffs with faults, judged. Exit status 1 when a promise broke.

Half of them between workers that loan each other their messages, half over the wire. Of each the
first fifth runs without faults: no digest may mismatch there and everything is delivered.
`--seed` repeats a run; `--first`, `--count` repeat a part of it. With `--authenticate` the workers
prove to each other that they know one secret.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common.security.files import KV, KvSecrets, write
from tests.faults.verdict import broken_promises, kinds_of, table, useless
from tests.faults.world import World

CALM_SHARE = 0.2
FAULT_SHARE = 0.6
ROUND = 2000
WARM = 50
KILL_EVERY = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog='make faults-kv ARGS="..."', description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--authenticate", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    failed: list[str] = []
    half, first = options.count // 2, options.first
    with tempfile.TemporaryDirectory() as folder:
        path = _new_secret(Path(folder)) if options.authenticate else ""
        for loans in (True, False):
            calm = int(half * CALM_SHARE)
            print("loaned" if loans else "sent", flush=True)
            make = partial(World, options.seed, loans=loans, secrets_file=path)
            failed += run_calm(make, first, calm)
            failed += run_faults(make, first + calm, half - calm, loans=loans)
            first += half
    print("\n".join(failed) or "every promise held, every fault took effect")
    return 1 if failed else 0


def _new_secret(folder: Path) -> str:
    path = folder / KV
    write(path, KvSecrets(secrets=[secrets.token_hex(32)]))
    return str(path)


def run_calm(make: Callable[..., World], first: int, count: int) -> list[str]:
    world = make(fault_share=0.0, kill_every=0)
    try:
        world.warm(WARM)
        world.run(first, count)
    finally:
        world.close()
    notes = world.notes
    print(f"without faults\n{table(notes)}\n", flush=True)
    failed = broken_promises(notes)
    if notes.outcomes["none", "delivered"] != count:
        failed.append(f"only {notes.outcomes} of {count} were delivered at the first try")
    return failed


def run_faults(make: Callable[..., World], first: int, count: int, *, loans: bool) -> list[str]:
    world = make(fault_share=FAULT_SHARE, kill_every=KILL_EVERY)
    try:
        for at in range(first, first + count, ROUND):
            world.run(at, min(ROUND, first + count - at))
    finally:
        world.close()
    print(f"with faults\n{table(world.notes)}\n", flush=True)
    failed = broken_promises(world.notes) + useless(world.notes, kinds_of(loans))
    if not world.notes.kills:
        failed.append("nobody was killed")
    return failed


if __name__ == "__main__":
    sys.exit(main())

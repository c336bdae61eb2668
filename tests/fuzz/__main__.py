"""`python -m tests.fuzz --frames N --seed S`: N bent frames over all decoders and the admin socket,
then N / 100 well-formed messages with impossible contents into a router core
and a gateway core."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.frames import UNIONS, FrameFaultError, Tally, attack, attack_slots
from tests.fuzz.gateway import attack_gateway
from tests.fuzz.router import attack_admin_of_a_router, attack_router


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000_000, help="in all (100 million)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--batch", type=int, default=100_000, help="frames of one decoder at a time"
    )
    given = parser.parse_args()
    done, seed, began = 0, given.seed, time.monotonic()
    while done < given.frames:
        try:
            for name in UNIONS:
                done += sum_of(attack(name, given.batch, seed))
            done += sum_of(attack_slots(given.batch // 10, seed))
            done += sum_of(attack_admin_of_a_router(given.batch // 10, seed))
            attack_router(given.batch // 100, seed)
            attack_gateway(given.batch // 100, seed)
        except FrameFaultError as fault:
            print(f"FAULT {fault}: {fault.__cause__!r}")
            return 1
        seed += 1
        print(f"{done:,} frames, seeds to {seed - 1}, {time.monotonic() - began:.0f} s", flush=True)
    return 0


def sum_of(tally: Tally) -> int:
    """Frames that a tally counts."""
    return tally.messages + tally.refused


if __name__ == "__main__":
    sys.exit(main())

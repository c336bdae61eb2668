"""Every body of the corpus against one fleet: a line for each that does harm, then the figures."""

from __future__ import annotations

import argparse
import sys

from tests.hostile.attack import (
    FIRST_USE_GAP_SECONDS_MAX,
    RSS_BYTES_MAX,
    Outcome,
    attack,
    first_use,
    report,
)
from tests.hostile.bodies import whole


def main(arguments: argparse.Namespace) -> int:
    outcomes: list[Outcome] = []
    seconds, first_gap = first_use()
    print(f"vLLM's classes at the first request: {seconds:.1f} s, gap {first_gap * 1000:.0f} ms")
    with attack() as running:
        for body in whole():
            if arguments.only not in body.name:
                continue
            outcome = running.send(body)
            outcomes.append(outcome)
            grown = running.grown_bytes >> 20
            if outcome.harm or arguments.verbose:
                line = f"{outcome.status} {outcome.seconds:6.2f} s, gap "
                line += f"{outcome.gap_seconds * 1000:5.0f} ms (control "
                line += f"{outcome.control_seconds * 1000:3.0f}), +{grown} MiB  {body.name}"
                print(line, "!!!", outcome.harm, outcome.answer[:200], flush=True)
        same, grown_bytes = running.is_the_same_process, running.grown_bytes
    print(report(outcomes, grown_bytes))
    harmful = [outcome for outcome in outcomes if outcome.harm]
    slow = first_gap > FIRST_USE_GAP_SECONDS_MAX
    return int(bool(harmful) or slow or not same or grown_bytes > RSS_BYTES_MAX)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only bodies with this in their name")
    parser.add_argument("--verbose", action="store_true", help="a line for each body")
    sys.exit(main(parser.parse_args()))

"""One line a second while a load runs: over the last one on a terminal, seldom into a file."""

from __future__ import annotations

import asyncio
import sys

from loadtest.bench.driver import Drive

TERMINAL_SECONDS = 1.0
FILE_SECONDS = 10.0
CLEAR = "\r\x1b[K"


async def show(drive: Drive) -> None:
    """Until cancelled."""
    terminal = sys.stderr.isatty()
    try:
        while True:
            await asyncio.sleep(TERMINAL_SECONDS if terminal else FILE_SECONDS)
            text = line(drive)
            print(CLEAR + text if terminal else text, end="" if terminal else "\n", file=sys.stderr)
            sys.stderr.flush()
    finally:
        if terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)


def line(drive: Drive) -> str:
    done = [each for each in drive.samples if each.ok]
    failed = sum(bool(each.error) for each in drive.samples)
    latest = drive.tokens_by_second[-5:]
    pace = sum(latest) / len(latest) if latest else 0.0
    firsts = sorted(each.ttft_ms or 0.0 for each in done[-100:])
    ttft = f", TTFT p50 {firsts[len(firsts) // 2]:.0f} ms" if firsts else ""
    return (
        f"{drive.now:6.0f} s  {len(drive.samples)} sent, {drive.open} open, {len(done)} ok, "
        f"{failed} failed, {pace:.0f} tokens/s{ttft}"
    )

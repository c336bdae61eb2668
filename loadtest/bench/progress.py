"""Progress lines of a load: one each second on a terminal, one each ten seconds in a file."""

from __future__ import annotations

import asyncio
import sys

from loadtest.bench.driver import LoadRun

TERMINAL_SECONDS = 1.0
FILE_SECONDS = 10.0
CLEAR = "\r\x1b[K"


async def show(load_run: LoadRun) -> None:
    """Until cancelled."""
    terminal = sys.stderr.isatty()
    try:
        while True:
            await asyncio.sleep(TERMINAL_SECONDS if terminal else FILE_SECONDS)
            text = line(load_run)
            print(CLEAR + text if terminal else text, end="" if terminal else "\n", file=sys.stderr)
            sys.stderr.flush()
    finally:
        if terminal:
            print(CLEAR, end="", file=sys.stderr, flush=True)


def line(load_run: LoadRun) -> str:
    done = [sample for sample in load_run.samples if sample.ok]
    failed = sum(bool(sample.error) for sample in load_run.samples)
    latest = load_run.tokens_by_second[-5:]
    pace = sum(latest) / len(latest) if latest else 0.0
    firsts = sorted(sample.ttft_ms or 0.0 for sample in done[-100:])
    ttft = f", TTFT p50 {firsts[len(firsts) // 2]:.0f} ms" if firsts else ""
    return (
        f"{load_run.now:6.0f} s  {len(load_run.samples)} sent, {load_run.open} open, "
        f"{len(done)} ok, {failed} failed, {pace:.0f} tokens/s{ttft}"
    )

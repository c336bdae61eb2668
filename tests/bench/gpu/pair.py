"""Runs one part of `make gpu` in two processes of its own, so that a crash ends that part only.

Theory of operation: this process never touches the card. It starts the near process, which
measures and reports, and the far one, which does what the near one asks of it over a pipe. Both
ignore Ctrl-C, which this process answers by killing them. Both end when this process has gone, and
the far one ends when the near one has.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from tests.bench.gpu.about import about
from tests.bench.gpu.report import Outcome, Row

JOIN_S = 5.0
REPORT_S = 2.0
"""In which the near process reports after the far one has died."""
CUDA, CPU = "cuda", "cpu"


@dataclass(frozen=True, slots=True)
class Tools:
    """What the process of a part works with."""

    device: str
    """`cuda`; or `cpu`, which proves this program where there is no card."""
    pipe: Connection
    """To the other process."""
    earlier: tuple[Row, ...] = ()
    """What the parts before this one measured."""
    together: bool = False
    """As in `Part`."""


Near = Callable[[Tools, Outcome], None]
"""Adds to the outcome what it finds."""
Far = Callable[[Tools], None]
"""Does what it is asked to, until the pipe ends."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the run."""

    name: str
    near: Near
    far: Far | None
    """None where one process is enough."""
    limit_s: float
    """The part is ended after so many seconds."""
    together: bool = False
    """Both ends are threads of one process: two processes that share a card compute in turns, as
    those with a card each do not, and each change costs both."""


def run(part: Part, device: str, earlier: tuple[Row, ...], limit_s: float) -> Outcome:
    """Within `limit_s`, and within the limit of the part."""
    context = multiprocessing.get_context("spawn")
    near_end, far_end = context.Pipe()
    results, report = context.Pipe(duplex=False)
    processes: list[BaseProcess] = [
        context.Process(
            target=_near,
            args=(part, Tools(device, near_end, earlier, part.together), far_end, report),
        )
    ]
    if part.far is not None and not part.together:
        processes.append(context.Process(target=_far, args=(part.far, Tools(device, far_end))))
    start = time.monotonic()
    try:
        for process in processes:
            process.start()
        for end in (near_end, far_end, report):
            end.close()
        outcome = _outcome(results, processes, min(limit_s, part.limit_s))
        if not outcome.failure:
            _join(processes, JOIN_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        _join(processes, JOIN_S)
    outcome.seconds = round(time.monotonic() - start, 1)
    return outcome


def _outcome(results: Connection, processes: list[BaseProcess], limit_s: float) -> Outcome:
    """What the near process reports; or that it, or the other one, did not live to the end."""
    sentinels = [process.sentinel for process in processes]
    ready = wait([results, *sentinels], limit_s)
    if not ready:
        return Outcome(failure=f"it did not end within {limit_s:.0f} s")
    with contextlib.suppress(EOFError):
        if results in ready or results.poll(REPORT_S):
            received = results.recv()
            assert isinstance(received, Outcome)
            if received.failure:
                received.failure = "; ".join([received.failure, *_deaths(processes)])
            return received
    return Outcome(failure="; ".join(_deaths(processes)) or "the near process closed its pipe")


def _deaths(processes: list[BaseProcess]) -> list[str]:
    """A sentence for each process that did not end well by now."""
    return [
        f"the {name} process died with exit code {process.exitcode}"
        for name, process in zip(("near", "far"), processes, strict=False)
        if process.exitcode
    ]


def _join(processes: list[BaseProcess], seconds: float) -> None:
    for process in processes:
        if process.pid is not None:
            process.join(seconds)


def _near(part: Part, tools: Tools, far_end: Connection, report: Connection) -> None:
    outcome = Outcome()
    _prepare(tools.device)
    if part.together and part.far is not None:
        other = Tools(tools.device, far_end)
        threading.Thread(target=_far_thread, args=(part.far, other), daemon=True).start()
    else:
        far_end.close()
    try:
        outcome.about = about(tools.device)
        part.near(tools, outcome)
    except Exception as error:
        traceback.print_exc()
        outcome.failure = f"{type(error).__name__}: {error}"
    report.send(outcome)


def _far(far: Far, tools: Tools) -> None:
    _prepare(tools.device)
    _far_thread(far, tools)


def _far_thread(far: Far, tools: Tools) -> None:
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        far(tools)


def _prepare(device: str) -> None:
    """CUDA comes first, so that UCX finds its context."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    if device == CUDA:
        torch.cuda.init()
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

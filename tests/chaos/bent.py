"""A daemon whose KV messages can be bent while it runs: `python -m tests.chaos.bent decode ...`.

A file `bend-NAME` in the run directory holds what is done to each KV data message sent (`drop`,
`flip`, `delay`, `reset`), or to every KV message (`mute`: a link over which nothing comes any
more); without it, nothing. Each message bent adds a byte to `bent-NAME`, which is the proof.
A prompt that begins with `POISON` kills its engine's process at once, which adds a byte to
`poisoned-NAME`. The order `hang` stops the simulated engine in its next step, `die` ends it with an
error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from common import config as configuration
from common.engine.port import EngineRequest
from common.engine.sim.engine import SimEngine
from common.errors import BatonError, Code
from common.kv.checksum.header import HEADER_BYTES
from common.kv.transport import ucx
from services.cli import main
from tests.faults.loaned import LoanedMessages

DELAY_SECONDS = 0.3
ENGINE_ORDERS = ("", "hang", "die")
POISON = list(b"poison!")


def _order(path: Path) -> str:
    """Empty when there is none; it may be withdrawn at any moment."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def install(run_dir: Path, name: str) -> None:
    """Wraps `Link.send` of this process. A lent message is bent where it lies."""
    places = LoanedMessages()
    places.install()
    send = ucx.UcxLink.send
    orders, proof = run_dir / f"bend-{name}", run_dir / f"bent-{name}"

    def bent(link: ucx.UcxLink, buffer: ucx.Buffer, tag: int, done: ucx.Done) -> None:
        order = _order(orders)
        loan = places.message(buffer, tag)
        is_data = bool(tag & ucx.DATA_TAG) and (loan is not None or buffer.nbytes > HEADER_BYTES)
        if order in ENGINE_ORDERS or not (is_data or order == "mute"):
            send(link, buffer, tag, done)
            return
        with proof.open("ab") as file:
            file.write(b".")
        if order == "reset":
            link.close()
        if order in ("drop", "mute", "reset"):
            link._owner.call_soon(done, "the connection is lost" if order == "reset" else None)
        elif order == "delay":
            link._owner.call_later(DELAY_SECONDS, lambda: send(link, buffer, tag, done))
        else:
            copy = buffer.copy()
            bent_one = copy if loan is None else loan
            bent_one[HEADER_BYTES + bent_one.nbytes // 3] ^= 1
            send(link, copy, tag, done)

    ucx.UcxLink.send = bent  # type: ignore[method-assign,assignment]


def bend_engine(run_dir: Path, name: str) -> None:
    step = SimEngine._step
    orders, proof = run_dir / f"bend-{name}", run_dir / f"bent-{name}"

    async def bent(engine: SimEngine) -> None:
        order = _order(orders)
        if order in ("hang", "die"):
            proof.write_text(order)
            orders.unlink(missing_ok=True)
        if order == "die":
            raise BatonError(Code.ENGINE_FAILED, "the engine process has died")
        if order == "hang":
            engine._step_due = engine._clock()
            await asyncio.Event().wait()
        await step(engine)

    SimEngine._step = bent  # type: ignore[method-assign,assignment]


def poison(run_dir: Path, name: str) -> None:
    """As a prompt does that trips a defect of the engine."""
    proof = run_dir / f"poisoned-{name}"
    add = SimEngine.add

    async def bitten(engine: SimEngine, request: EngineRequest) -> None:
        if request.prompt_ids[: len(POISON)] == POISON:
            with proof.open("ab") as file:
                file.write(b".")
            os.kill(os.getpid(), signal.SIGKILL)
        await add(engine, request)

    SimEngine.add = bitten  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    arguments = sys.argv[1:]
    fleet_file = Path(arguments[arguments.index("--config") + 1])
    place = Path(configuration.load(fleet_file).fleet.run_dir)
    worker = arguments[arguments.index("--name") + 1]
    install(place, worker)
    bend_engine(place, worker)
    poison(place, worker)
    sys.exit(main(arguments))

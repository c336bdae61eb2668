"""How the end of a worker waits for its requests, and when it gives them up."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from common.engine.port import Output
from common.worker.draining import Draining
from services.decode.core import DecodeCore
from tests.unit.services.decode.test_decode_core import Bench, dispatch, step


def streaming() -> tuple[Bench, DecodeCore]:
    bench = Bench()
    bench(dispatch("r"))
    bench(step(Output("r#1", [10])))
    return bench, bench.core


async def test_what_cannot_even_move_in_time_is_given_up_once_more_at_once() -> None:
    _, core = streaming()
    given_up: list[bool] = []
    await Draining(core, structlog.get_logger()).run(0.02, given_up.append)
    assert given_up == [False, True]


@pytest.mark.parametrize("ends_at", [0, 1])
async def test_what_ends_in_time_is_not_given_up(ends_at: int) -> None:
    """By itself, or because it has moved."""
    bench, core = streaming()
    draining = Draining(core, structlog.get_logger())
    given_up: list[bool] = []

    def end() -> None:
        bench(step(Output("r#1", [11], "stop", 11)))
        draining.look()

    def give_up(at_once: bool) -> None:
        given_up.append(at_once)
        end()

    if not ends_at:
        asyncio.get_running_loop().call_soon(end)
    await draining.run(0.02 if ends_at else 20.0, give_up)
    assert given_up == [False] * ends_at

"""A stream is copied ahead of its move: what the engine and the routers are told."""

from __future__ import annotations

import pytest

from common.engine.port import Batch, Output
from common.messages import CopiedAhead, CopyAhead, KvHolder
from common.worker.actions import CopyInEngine, ToRouter
from tests.rigs.messages import kv_done
from tests.unit.services.decode.test_decode_core import Bench, dispatch, step

HOLDER = KvHolder(name="d1", incarnation="j", fingerprint="f", kv_address="h:2")


def order(attempt: int = 1, holder: KvHolder | None = HOLDER) -> CopyAhead:
    return CopyAhead(request_id="r", attempt=attempt, holder=holder, lag_blocks=2)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench(dispatch())
    bench(step(Output("r#1", [10])))
    return bench


def test_the_engine_copies_and_routers_learn_the_holder(bench: Bench) -> None:
    assert bench(order()) == [CopyInEngine(order())]
    held = bench.core.held_attempt("r", 1)
    assert held is not None
    assert held.holder == "d1|j"
    assert bench(order(holder=None)) == [CopyInEngine(order(holder=None))]
    held = bench.core.held_attempt("r", 1)
    assert held is not None
    assert held.holder == ""


def test_the_stream_goes_on_meanwhile(bench: Bench) -> None:
    bench(order())
    assert bench.core.active == 1
    assert bench(step(Output("r#1", [11])))


def test_an_order_for_another_attempt_is_dropped(bench: Bench) -> None:
    assert bench(order(attempt=2)) == []
    assert bench.core.dropped == 1


def test_the_router_is_told_what_the_holder_has(bench: Bench) -> None:
    bench(order())
    done = kv_done(side="copy", held=3, message="1 blocks were skipped")
    told = CopiedAhead(request_id="r", attempt=1, held=3, message="1 blocks were skipped")
    assert bench(Batch(kv_done=[done])) == [ToRouter(told)]
    assert bench.core.active == 1, "it is no end of a handoff"

"""Requests of a pooling model on their worker: one delta each, and no message too large."""

from __future__ import annotations

from common.engine.port import Batch, Output
from common.messages import (
    DecodeStarted,
    Delta,
    Ended,
    Pooling,
    RequestBody,
    Sampling,
    Tokens,
)
from common.net.wire import encode, pack_ids
from common.worker.actions import AddToEngine, Dispatched, ToGateway, ToRouter
from services.decode.core import DecodeCore
from services.decode.grant_limit import GrantLimit
from services.decode.stream import FRAME_POOLED_BYTES_MAX, in_frames
from tests.rigs import messages

POOLING = Pooling(task="embed", dimensions=8)
BODY = RequestBody(prompt_ids=pack_ids([5, 6, 7]), sampling=Sampling(max_tokens=0), pooling=POOLING)
FRAME_BYTES_MAX = 1 << 20


def core_with(*names: str) -> DecodeCore:
    core = DecodeCore("d0", "i", GrantLimit(64, 10_000, 16))
    for name in names:
        (added,) = core.handle(Dispatched(messages.decode(name, 1, "g0"), BODY), 1.0)
        assert isinstance(added, AddToEngine)
        assert (added.request.pooling, added.request.sampling.max_tokens) == (POOLING, 0)
    core.check_invariants()
    return core


def test_what_was_made_of_a_prompt_goes_to_its_gateway_and_the_router_hears_both_ends() -> None:
    core = core_with("r")
    output = Output("r#1", [], "stop", cached_tokens=2, pooled=b"\0\0\x80?")
    sent, *reports = core.handle(Batch(outputs=[output]), 3.0)
    assert isinstance(sent, ToGateway)
    (delta,) = sent.deltas
    assert (delta.pooled, delta.finish_reason, delta.cached_tokens) == (b"\0\0\x80?", "stop", 2)
    told = [report.message for report in reports if isinstance(report, ToRouter)]
    assert [type(message) for message in told] == [DecodeStarted, Ended]
    assert isinstance(told[0], DecodeStarted)
    assert told[0].elapsed_ms == 2000
    assert core.active == 0
    core.check_invariants()


def test_a_step_whose_vectors_exceed_a_frame_is_sent_in_parts() -> None:
    names = [f"r{n}" for n in range(24)]
    core = core_with(*names)
    vector = b"\0" * (64 << 10)
    step = Batch(outputs=[Output(f"{name}#1", [], "stop", pooled=vector) for name in names])
    sends = [action for action in core.handle(step, 2.0) if isinstance(action, ToGateway)]
    assert len(sends) > 1
    assert [delta.request_id for send in sends for delta in send.deltas] == names
    for send in sends:
        assert len(encode(Tokens(deltas=send.deltas))) < FRAME_BYTES_MAX


def test_parts_are_as_large_as_they_may_be_and_never_empty() -> None:
    half = FRAME_POOLED_BYTES_MAX // 2
    sizes = [half, half, 1, FRAME_POOLED_BYTES_MAX, FRAME_POOLED_BYTES_MAX + 1, 3]
    deltas = [Delta(f"r{n}", 1, 0, [], pooled=b"\0" * size) for n, size in enumerate(sizes)]
    parts = [[len(delta.pooled) for delta in part] for part in in_frames(deltas)]
    assert parts == [[half, half], [1], [sizes[3]], [sizes[4]], [3]]

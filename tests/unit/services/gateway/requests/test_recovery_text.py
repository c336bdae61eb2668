"""Wherever a stream is cut and goes on, its answer is the same: text, ids, usage, finish reason."""

from __future__ import annotations

import pytest

from common.messages import Delta, Placed, Sampling
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.requests.events import FromRouter, Opened, Stepped, WorkerGone
from services.gateway.streams.answer import Ending
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from services.gateway.text.detokenizer import ByteLevelDetokenizer
from tests.unit.services.gateway.gate import D0, D1, PIECES, Gate, Once

TEXT = list("naïve zq ümlaut, stop héré now".encode())
"""One token a byte: a cut may fall inside a character."""


class Cut:
    """A stream that says `TEXT`, from `at` on by another worker."""

    def __init__(self, at: int, stop: str, min_tokens: int) -> None:
        self.gate = Gate(recovery=True)
        self.answer = self.gate.answers["r"] = Once()
        sampling = Sampling(max_tokens=len(TEXT), min_tokens=min_tokens)
        spec = RequestSpec(Kind.CHAT, "r", "m", 0, [1, 2], sampling)
        stream = TextStream(
            Journal([1, 2], sampling.max_tokens),
            sampling,
            ByteLevelDetokenizer(PIECES),
            self.answer,
            stops=(stop,) if stop else (),
        )
        self.gate.do(Opened(spec, stream, self.answer))
        self.say(1, 0, at, D0)
        if self.answer.ending is None:
            self.gate.do(WorkerGone(D0, "x"))
            self.say(2, at, len(TEXT), D1)

    def say(self, attempt: int, start: int, end: int, worker: bytes) -> None:
        name = worker.split(b"|")[0].decode()
        placed = Placed(request_id="r", attempt=attempt, decode=name, decode_incarnation="1")
        self.gate.do(FromRouter(placed))
        for at in range(start, end):
            if self.answer.ending is None:
                last = "length" if at == len(TEXT) - 1 else ""
                delta = Delta("r", attempt, at - start, [TEXT[at]], finish_reason=last)
                self.gate.do(Stepped(worker, [delta]))

    @property
    def all(self) -> tuple[str, list[int], Ending]:
        assert self.answer.ending is not None
        return self.answer.joined_text, self.answer.token_ids, self.answer.ending


@pytest.mark.parametrize(
    ("stop", "min_tokens", "ends"),
    [
        ("", 0, "length"),
        ("stop h", 0, "stop"),
        ("ümlaut", 0, "stop"),
        ("q", 0, "stop"),
        ("ve", 12, "length"),
        ("ï", 4, "length"),
        ("ï", 3, "stop"),
    ],
)
def test_an_answer_does_not_depend_on_where_it_was_cut(
    stop: str, min_tokens: int, ends: str
) -> None:
    whole = Cut(len(TEXT), stop, min_tokens).all
    assert whole[2].reason == ends
    assert whole[2].usage.prompt == 2
    assert whole[2].usage.completion == len(whole[1])
    for at in range(1, len(TEXT)):
        assert Cut(at, stop, min_tokens).all == whole, at

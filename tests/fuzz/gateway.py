"""Well-formed messages with impossible contents into a real gateway core, from all its peers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from common.messages import DecodeToGateway, RouterToGateway, Tokens
from services.gateway.requests.events import (
    Event,
    FromRouter,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
    WorkerGone,
)
from tests.fuzz.frames import FrameFaultError
from tests.fuzz.samples import Samples
from tests.unit.services.gateway.gate import D0, D1, Gate

WORDS: dict[str, Sequence[Any]] = {
    "request_id": ("r0", "r1", "r2"),
    "attempt": (1, 1, 1, 2),
    "index": (0, 0, 1, 2, 3),
    "token_ids": ([], [65], [66, 67], [2**32 - 1]),
    "finish_reason": ("", "", "", "stop"),
    "error": ("", "", ""),
    "decode": ("d0", "d1"),
    "decode_incarnation": ("1",),
}
SAMPLES = 300


def attack_gateway(steps: int, seed: int) -> int:
    """Raises FrameFaultError. Returns how many tokens streams took."""
    rng = random.Random(f"gateway {seed}")
    gate = Gate(up=True, recovery=True)
    router = _decoded(rng, RouterToGateway)
    worker = [message for message in _decoded(rng, DecodeToGateway) if isinstance(message, Tokens)]
    answers = []
    for step in range(steps):
        if step % 20 == 0:
            name = f"r{step // 20 % 3}"
            if name not in gate.core._table.requests:
                gate.open(name)
                gate.place(name)
                answers.append(gate.answers[name])
        event = _event(rng, router, worker)
        try:
            for action in gate.do(event):
                if isinstance(action, ToRouter):
                    msgspec.msgpack.encode(action.message)
        except Exception as error:
            raise FrameFaultError(f"gateway seed {seed} step {step}: {event}") from error
    return sum(len(answer.token_ids) for answer in answers)


def _event(rng: random.Random, router: list[Any], worker: list[Tokens]) -> Event:
    luck = rng.random()
    if luck < 0.3:
        return FromRouter(rng.choice(router))
    if luck < 0.88:
        return Stepped(rng.choice((D0, D0, D1)), rng.choice(worker).deltas)
    if luck < 0.92:
        return WorkerGone(rng.choice((D0, D1)), "its connection closed")
    return rng.choice((Tick(), RouterDown(), RouterUp()))


def _decoded(rng: random.Random, union: Any) -> list[Any]:
    decoder = msgspec.msgpack.Decoder(union)
    return [
        decoder.decode(msgspec.msgpack.encode(value))
        for value in Samples(rng, words=WORDS).of(union, SAMPLES)
    ]

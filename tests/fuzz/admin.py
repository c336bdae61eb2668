"""The admin socket's answers to garbage: one frame, in the asker's encoding, no crash."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from common.net.admin_verbs import VERBS
from common.net.wire import FRAME_BYTES_MAX
from services.router.admin.answer import answer
from services.router.admin.verb import View
from tests.fuzz.frames import FrameFaultError, Tally
from tests.fuzz.mutate import bent
from tests.fuzz.samples import TEXTS, WRONG


def questions(rng: random.Random) -> list[bytes]:
    """Of every verb, in both encodings, with arguments that are right, wrong and unknown."""
    made: list[bytes] = []
    for verb in (*VERBS.values(), None):
        for _ in range(12):
            args = {
                arg.name: rng.choice((*WRONG, *TEXTS, 0, 1, 2**63, *arg.choices))
                for arg in (verb.args if verb is not None else ())
                if rng.random() < 0.4
            }
            question: dict[str, Any] = {
                "verb": verb.name if verb is not None else "?",
                "args": args,
            }
            made.append(msgspec.msgpack.encode(question))
            made.append(msgspec.json.encode(question))
    return made


def attack_admin(frames: int, seed: int, view: Callable[[], View]) -> Tally:
    """Raises FrameFaultError. `messages` counts the questions that were understood."""
    rng = random.Random(f"admin {seed}")
    pool = questions(rng)
    good = 0
    for number in range(frames):
        frame = bent(rng, pool[number % len(pool)], pool)
        try:
            told = answer(frame, view)
            decode = msgspec.json.decode if frame[:1] == b"{" else msgspec.msgpack.decode
            read = decode(told)
        except Exception as error:
            raise FrameFaultError(f"admin seed {seed} frame {number} {frame.hex()}") from error
        if not isinstance(read["ok"], bool) or len(told) > FRAME_BYTES_MAX:
            raise FrameFaultError(f"admin answered {told[:200]!r} to {frame.hex()}")
        if not read["ok"] and set(read["error"]) != {"code", "message"}:
            raise FrameFaultError(f"admin answered {told[:200]!r} to {frame.hex()}")
        good += read["ok"]
    return Tally("admin", good, frames - good)

"""Every decoder of the wire against bent frames: a message of its union comes out, or WireError.

Nothing else may: no other exception, no message of another receiver, and what came out can be
encoded again and read to the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from common.errors import WireError
from common.kv.messages import DaemonToKv, KvPeerMessage, KvToDaemon
from common.kv.peers.authentication import FaultSeals
from common.kv.peers.channel import CONTROL_FRAME_BYTES, HEAD_BYTES, pack_frame, unpack_frame
from common.messages import (
    DecodeToGateway,
    GatewayToDecode,
    GatewayToRouter,
    Hello,
    RequestBody,
    RouterToGateway,
    RouterToPool,
    RouterToWorker,
    WorkerToRouter,
)
from common.net.wire import Decoder, decode_body
from tests.fuzz.mutate import bent
from tests.fuzz.samples import Samples

UNIONS: dict[str, Any] = {
    "GatewayToRouter": GatewayToRouter,
    "WorkerToRouter": WorkerToRouter,
    "RouterToGateway": RouterToGateway,
    "RouterToWorker": RouterToWorker,
    "RouterToPool": RouterToPool,
    "DecodeToGateway": DecodeToGateway,
    "GatewayToDecode": GatewayToDecode,
    "Hello": Hello,
    "RequestBody": RequestBody,
    "KvPeerMessage": KvPeerMessage,
    "DaemonToKv": DaemonToKv,
    "KvToDaemon": KvToDaemon,
}
POOL = 400
ODD = 0.04
REREAD_EVERY = 16


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the frames of one decoder."""

    decoder: str
    messages: int
    refused: int


class FrameFaultError(Exception):
    """A frame did what no frame may; names everything that repeats it."""


def attack(name: str, frames: int, seed: int) -> Tally:
    """Raises FrameFaultError."""
    union, rng = UNIONS[name], random.Random(f"{name} {seed}")
    decode: Callable[[bytes], Any] = decode_body if name == "RequestBody" else Decoder(union).decode
    kinds = get_args(union) or (union,)
    encode = msgspec.msgpack.Encoder().encode
    samples = Samples(rng, odd=ODD)
    pool = [encode(value) for value in samples.of(union, POOL)]
    messages = refused = 0
    for number in range(frames):
        frame = bent(rng, pool[number % POOL], pool)
        try:
            message = decode(frame)
        except WireError:
            refused += 1
            continue
        except Exception as error:
            raise FrameFaultError(f"{name} seed {seed} frame {number} {frame.hex()}") from error
        messages += 1
        if not isinstance(message, kinds):
            raise FrameFaultError(f"{name} gave a {type(message).__name__}: {frame.hex()}")
        if number % REREAD_EVERY == 0:
            again = encode(message)
            if encode(decode(again)) != again:
                raise FrameFaultError(f"{name} reads its own message otherwise: {frame.hex()}")
    return Tally(name, messages, refused)


def attack_slots(slots: int, seed: int) -> Tally:
    """The UCX plane's control slots, `length | seal | frame`: what comes out of a bent one is
    what went in, or WireError. Raises FrameFaultError."""
    rng = random.Random(f"slots {seed}")
    frames = [msgspec.msgpack.encode(value) for value in Samples(rng).of(KvPeerMessage, POOL)]
    fitting = [frame for frame in frames if len(frame) <= CONTROL_FRAME_BYTES - HEAD_BYTES]
    refused = 0
    for number in range(slots):
        frame = fitting[number % len(fitting)]
        slot = pack_frame(frame, FaultSeals())
        for _ in range(rng.randrange(3)):
            slot[rng.randrange(HEAD_BYTES + len(frame))] ^= 1 << rng.randrange(8)
        try:
            read = unpack_frame(slot, FaultSeals())
        except WireError:
            refused += 1
            continue
        except Exception as error:
            raise FrameFaultError(
                f"slot {number} of seed {seed}: {slot.tobytes().hex()}"
            ) from error
        if read != frame:
            raise FrameFaultError(
                f"slot {number} of seed {seed} came out as another: {frame.hex()}"
            )
    return Tally("control slots", slots - refused, refused)

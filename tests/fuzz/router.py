"""Well-formed messages with impossible contents into a real router core: any role says anything.

A peer that holds a key may be broken, old, or taken over. The core may drop, refuse or fence it; it
may not raise, lose its invariants, or stop serving the others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from common.identity import split_identity
from common.messages import (
    WIRE_VERSION,
    Beat,
    DecodeStarted,
    Ended,
    GatewayToRouter,
    Load,
    Role,
    Submit,
    WorkerToRouter,
)
from common.messages import Hello as HelloMessage
from services.router.admin.verb import View
from services.router.core import Core
from services.router.events import Action, Event, PeerGone, Received, Send, Tick
from services.router.settings import Settings
from tests.fuzz.admin import attack_admin
from tests.fuzz.frames import FrameFaultError, Tally
from tests.fuzz.samples import Samples

PEERS = {
    "g0|1": Role.GATEWAY, "g1|1": Role.GATEWAY, "p0|1": Role.PREFILL, "p1|1": Role.PREFILL,
    "d0|1": Role.DECODE, "d1|1": Role.DECODE, "d0|2": Role.DECODE,
}  # fmt: skip
IDS = tuple(f"r{i}" for i in range(6))
NAMES = ("p0", "p1", "d0", "d1", "g0")
IDENTITIES = (*PEERS, "d9|9", "", "x")
HEARD: dict[Role, Any] = {
    Role.GATEWAY: GatewayToRouter,
    Role.PREFILL: WorkerToRouter,
    Role.DECODE: WorkerToRouter,
}
MODELS = ("chat", "code")
"""All workers have one fingerprint: only the model keeps those of two apart."""
WORDS: dict[str, Sequence[Any]] = {
    "model": (*MODELS, "", "nope"),
    "request_id": IDS,
    "attempt": (1, 2, 3),
    "tries": ([], [["r0", 1]], [["r1", 1], ["r2", 2]]),
    "prefill": NAMES,
    "decode": IDENTITIES,
    "gateway": IDENTITIES,
    "prompt_tokens": (1, 40, 500, 4000),
    "max_tokens": (1, 16, 500),
}
HELLO_WORDS: dict[str, Sequence[Any]] = {
    "wire_version": (WIRE_VERSION,),
    "fingerprint": ("f",),
    "model": MODELS,
    "kv_address": ("10.0.0.1:5",),
    "stream_endpoint": ("ipc:///x",),
    "block_tokens": (16,),
    "kv_blocks": (512,),
    "kv_block_bytes": (1024,),
    "max_model_len": (4096,),
    "max_num_seqs": (8,),
}


def attack_router(steps: int, seed: int) -> Core:
    """Half of what is said is what good peers would say, so that something can break. Raises
    FrameFaultError. Returns the core as it ended."""
    rng = random.Random(f"router {seed}")
    now = 100.0
    core = Core(Settings(models=MODELS), lambda: rng.randbytes(16), rng.random, now)
    wild = {role: _messages(rng, union) for role, union in HEARD.items()}
    for step in range(steps):
        now += rng.choice((0.0, 0.001, 0.05, 0.2))
        peer = rng.choice(tuple(PEERS))
        luck = rng.random()
        event: Event = Tick()
        if luck < 0.05:
            event = Received(peer, _hello(rng, peer), None)
        elif luck < 0.06:
            event = PeerGone(peer, "its connection closed")
        elif luck < 0.45:
            message = rng.choice(wild[PEERS[peer]])
            event = Received(peer, message, rng.choice((None, b"body", b"")))
        elif luck < 0.9:
            event = _good(rng, core, step)
        try:
            _encodable(core.handle(event, now))
            core.check_invariants()
        except Exception as error:
            raise FrameFaultError(f"router seed {seed} step {step}: {event}") from error
    return core


def _good(rng: random.Random, core: Core, step: int) -> Event:
    """A new request, a beat, or how an attempt that runs goes on."""
    running = [attempt for attempt in core.shared.attempts() if attempt.placement is not None]
    luck = rng.random()
    if luck < 0.4:
        worker = rng.choice(("p0|1", "p1|1", "d0|1", "d1|1", "d0|2"))
        return Received(worker, Beat(load=Load()), None)
    if luck < 0.6 or not running:
        model = rng.choice(MODELS)
        submit = Submit(
            request_id=f"s{step}", attempt=1, model=model, prompt_tokens=40, max_tokens=8
        )
        return Received(rng.choice(("g0|1", "g1|1")), submit, b"body")
    attempt = rng.choice(running)
    assert attempt.placement is not None
    decode = attempt.placement.decode.identity
    said: DecodeStarted | Ended
    if luck < 0.8:
        said = DecodeStarted(request_id=attempt.request_id, attempt=attempt.number, elapsed_ms=5.0)
    else:
        said = Ended(request_id=attempt.request_id, attempt=attempt.number, finish_reason="stop")
    return Received(decode, said, None)


def attack_admin_of_a_router(frames: int, seed: int) -> Tally:
    """Garbage into the admin verbs of a router that garbage was already said to."""
    core, now = attack_router(400, seed), 200.0

    def act(event: Event) -> None:
        core.handle(event, now)

    tally = attack_admin(frames, seed, lambda: View(core.shared, now, {}, act))
    core.check_invariants()
    return tally


def _messages(rng: random.Random, union: Any, count: int = 600) -> list[Any]:
    """Those samples that decode: what a router's shell would let through."""
    decoder = msgspec.msgpack.Decoder(union)
    encoded = map(msgspec.msgpack.encode, Samples(rng, words=WORDS).of(union, count))
    found = []
    for frame in encoded:
        try:
            found.append(decoder.decode(frame))
        except msgspec.MsgspecError:
            continue
    assert len(found) > count // 4
    return found


def _hello(rng: random.Random, peer: str) -> HelloMessage:
    name, incarnation = split_identity(peer)
    (value,) = Samples(rng, words=WORDS | HELLO_WORDS).of(HelloMessage, 1)
    own = {"role": PEERS[peer].value, "name": name, "incarnation": incarnation}
    capacity = {key: rng.choice(HELLO_WORDS[key]) for key in (
        "block_tokens", "kv_blocks", "kv_block_bytes", "max_model_len", "max_num_seqs"
    )}  # fmt: skip
    wanted = {"wire_version": WIRE_VERSION, "stream_endpoint": "ipc:///x", "fingerprint": "f"}
    merged = value | own
    if rng.random() < 0.9:
        merged |= wanted | {"capacity": capacity, "kv_address": "10.0.0.1:5"}
    return msgspec.convert(merged, HelloMessage)


def _encodable(actions: list[Action]) -> None:
    for action in actions:
        if isinstance(action, Send):
            msgspec.msgpack.encode(action.message)

"""What a decision costs: `python -m tests.simulation.router_speed`.

Each row is the whole cycle of one request (Submit, PrefillEnded, DecodeStarted, Ended) with a full
queue behind it, in process CPU time. The baseline of the same run is the least any Python router
could do for it: the same four messages decoded from MessagePack and nothing decided. Both are the
best of `SPANS` spans, for what else runs on the machine only ever adds. The p99 of single events
comes from further cycles, as reading the clock so often would be a tenth of what is measured.
Then come a choice alone, by each policy, for a prompt whose prefix all workers have; and the cycles
of requests of which no store has anything, with prefetching for the queue and without, in turns.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from common.messages import (
    Beat,
    Decode,
    DecodeStarted,
    Ended,
    KvReport,
    Load,
    PrefillEnded,
    PrefixDelta,
    Role,
    Submit,
    ToRouter,
)
from common.net.wire import Decoder, encode
from common.prefix import HASH_BYTES
from services.router.core import Core
from services.router.events import Action, Received, Send
from services.router.placement.place import place
from services.router.placement.policies.registry import POLICIES
from services.router.placement.types import Placement, PlacementContext, Policy, ResourceRequest
from services.router.settings import Settings
from tests.rigs.messages import hello, worker_hello

QUEUE = 2_000
CYCLES = 2_000
SPANS = 20
CHOICES = 300
PREFIX = 64
HASHES = 12
"""Of the whole blocks of a prompt of 200 tokens."""
PREFETCH_ROUNDS = 3
BODY = bytes(800)


class Drive:
    """A core with `workers` workers, half of them prefill, driven as fast as it goes. `seconds`:
    where the time of each event is noted, if anywhere. `prefetch`: as `[router] prefetch_queued`;
    the workers have stores then, and each prompt its own hashes."""

    def __init__(self, workers: int, prefetch: int | None = None) -> None:
        self.now = 1.0
        self.draw = random.Random(2)
        self.hashed = prefetch is not None
        settings = Settings(
            max_queue=QUEUE + 10, worker_timeout_ms=1e12, prefetch_queued=prefetch or 0
        )
        self.core = Core(settings, lambda: bytes(16), random.Random(1).random, 1.0)
        self.ids = count()
        self.running: deque[tuple[str, str, str]] = deque()
        self.seconds: list[float] | None = None
        self.receive("g0|1", hello(Role.GATEWAY, "g0", "1", stream_endpoint="ipc://x"))
        for i in range(workers):
            role, name = (Role.PREFILL, f"p{i}") if i % 2 else (Role.DECODE, f"d{i}")
            pull = 64 if self.hashed else 0
            said = worker_hello(
                role, name, blocks=1000, seqs=16, max_model_len=8192, pull_blocks=pull
            )
            self.receive(f"{name}|1", said)
            self.receive(f"{name}|1", Beat(load=Load()))
            if self.hashed:
                stored = self.draw.randbytes(HASH_BYTES * PREFIX)
                self.receive(f"{name}|1", PrefixDelta(stored=stored, medium="store"))

    def receive(self, peer: str, message: ToRouter, body: bytes | None = None) -> None:
        event = Received(peer, message, body)
        if self.seconds is None:
            self._note(self.core.handle(event, self.now))
            return
        start = time.process_time()
        actions = self.core.handle(event, self.now)
        self.seconds.append(time.process_time() - start)
        self._note(actions)

    def _note(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Decode):
                ticket = action.message.ticket
                prefill = f"{ticket.prefill}|1" if ticket else ""
                self.running.append((action.message.request_id, prefill, action.peer))

    def submit(self) -> None:
        request_id = f"r{next(self.ids)}"
        hashes = self.draw.randbytes(HASH_BYTES * HASHES) if self.hashed else b""
        message = Submit(
            request_id=request_id,
            attempt=1,
            prompt_tokens=200,
            max_tokens=64,
            prefix_hashes=hashes,
        )
        self.receive("g0|1", message, BODY)

    def cycle(self) -> None:
        self.now += 0.0001
        request_id, prefill, decode = self.running.popleft()
        for peer, message in zip((prefill, decode, decode), reports(request_id), strict=True):
            self.receive(peer, message)
        self.submit()


def reports(request_id: str) -> tuple[ToRouter, ToRouter, ToRouter]:
    return (
        PrefillEnded(request_id=request_id, attempt=1, elapsed_ms=1.0),
        DecodeStarted(
            request_id=request_id, attempt=1, elapsed_ms=1.0, kv=KvReport(blocks=2, complete=True)
        ),
        Ended(request_id=request_id, attempt=1, finish_reason="stop"),
    )


def baseline() -> float:
    """Seconds to decode the four messages of a cycle."""
    decoder: Decoder[ToRouter] = Decoder(ToRouter)
    submit = Submit(request_id="r1", attempt=1, prompt_tokens=200, max_tokens=64)
    frames = [encode(message) for message in (submit, *reports("r1"))]

    def decode() -> None:
        for frame in frames:
            decoder.decode(frame)

    return best(decode)


def best(once: Callable[[], None]) -> float:
    """Seconds that one of `CYCLES` calls takes."""
    spans = []
    for _ in range(SPANS):
        start = time.process_time()
        for _ in range(CYCLES // SPANS):
            once()
        spans.append(time.process_time() - start)
    return min(spans) / (CYCLES // SPANS)


def main() -> None:
    least = min(baseline() for _ in range(5))
    print(f"baseline, decoding only: {least * 1e6:.1f} us a request")
    for workers in (2, 16, 64, 256, 1000):
        load = Drive(workers)
        while len(load.core.tables.waiting) < QUEUE:
            load.submit()
        seconds = best(load.cycle)
        load.seconds = []
        for _ in range(CYCLES):
            load.cycle()
        p99 = sorted(load.seconds)[int(len(load.seconds) * 0.99)]
        print(
            f"{workers:5} workers: {1 / seconds:6.0f} requests/s, "
            f"{seconds / least:5.1f} x the baseline, one event p99 {p99 * 1e3:.2f} ms"
        )
    for workers in (64, 1000):
        for policy in POLICIES.values():
            seconds = choosing(workers, policy)
            print(
                f"{workers:5} workers, {policy.NAME}: {1 / seconds:6.0f} choices/s, "
                f"{seconds / least:5.1f} x the baseline"
            )
    off, on = prefetching()
    print(f"16 workers, nothing stored: {off * 1e6:.0f} us a request, {on * 1e6:.0f} with prefetch")


def prefetching() -> tuple[float, float]:
    """Seconds of a cycle without prefetching and with it."""
    drives = [Drive(16, prefetch) for prefetch in (0, 5)]
    for load in drives:
        while len(load.core.tables.waiting) < QUEUE:
            load.submit()
    rounds = [[best(load.cycle) for load in drives] for _ in range(PREFETCH_ROUNDS)]
    return min(off for off, _ in rounds), min(on for _, on in rounds)


def choosing(workers: int, policy: Policy) -> float:
    """Seconds to match a prompt of `PREFIX` blocks, which every worker has, and to choose."""
    core = Drive(workers).core
    hashes = [n.to_bytes(8) for n in range(PREFIX)]
    request = ResourceRequest(PREFIX * 16 + 1, 64, session="s", prefix=tuple(hashes))
    prefixes, board = core.tables.placement_memory.prefixes, core.tables.snapshots
    for identity in core.tables.workers:
        prefixes.add(identity, hashes, 1000)
    decodes, prefills = board.open_decodes(), board.prefills()
    start = time.process_time()
    for _ in range(CHOICES):
        cached = {name: n * 16 for name, n in prefixes.match(request.prefix).items()}
        choice = place(PlacementContext(request, cached), decodes, prefills, policy)
        assert isinstance(choice, Placement)
    return (time.process_time() - start) / CHOICES


if __name__ == "__main__":
    main()

"""Handoffs between two KV services on one card, as the engines of P and D have them.

The near process is D and asks P, the far one, over the pipe to offer prompts. P answers each
request once, in order, so that D may ask ahead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from common.config import KvConfig
from common.kv.layout import Geometry
from common.kv.messages import NO_FORM, KvDone, KvForm
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.messages import KvReport, Ticket
from tests.bench.gpu.engine import Engine
from tests.bench.gpu.memory import MIB, FilledMemory, LaidOut, layers_first
from tests.bench.gpu.pair import CUDA, Tools
from tests.rigs.messages import ticket

HOST = "host"
DEVICE_PATHS = ("device", "pinned")
DEVICE_TRANSPORTS = "tcp,sm,self,cuda_copy,cuda_ipc"
HOST_TRANSPORTS = "tcp,sm,self"
PINNED_MESSAGE_BYTES = 16 * MIB
STAGING_MIB = 512
"""Of the device path, whose messages have an eighth of it: 64 MiB."""
UNLIKE_HEADS = 4
WAIT_S = 20.0
LEASE_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What both ends of a handoff have alike."""

    path: str
    """As in `[kv]`; `host` moves KV of host memory."""
    geometry: Geometry
    """Of the blocks that travel."""
    staging_mib: int = STAGING_MIB
    unlike: tuple[LaidOut, LaidOut] | None = None
    """How P and D lay them out; None: as they travel."""

    def laid_out(self, name: str) -> LaidOut:
        """By P, `p0`, or by D, `d0`."""
        if self.unlike is None:
            return LaidOut(self.geometry)
        return self.unlike[name == "d0"]


def paths_of(device: str) -> tuple[str, ...]:
    return DEVICE_PATHS if device == CUDA else (HOST,)


def config_of(settings: Settings) -> KvConfig:
    if settings.path == HOST:
        return KvConfig(transports=HOST_TRANSPORTS)
    more: dict[str, Any] = {
        "path": settings.path,
        "device_staging_mib": settings.staging_mib,
        "message_bytes": PINNED_MESSAGE_BYTES,
    }
    return KvConfig(transports=DEVICE_TRANSPORTS, **more)


class Side:
    """One end: its memory and its KV service."""

    def __init__(self, name: str, device: str, settings: Settings) -> None:
        """`name`: `p0` or `d0`."""
        self._card: Any = None
        if device == CUDA:
            import torch

            from common.kv.device.card import CudaCard

            self._card = CudaCard(torch.device(device, 0))
        self.memory = FilledMemory(settings.laid_out(name), device)
        kv_memory, forms = self.memory.kv_memory(self._card)
        form = KvForm("m") if forms else NO_FORM
        identity = WorkerIdentity(name, f"inc-{name}", name if forms else "f", form=form)
        self.service = KvService(identity, config_of(settings), kv_memory, canonical=forms)
        self.address = self.service.start()

    def after(self) -> dict[str, Any]:
        """For calls of the service that come after work that this thread has launched on the card:
        it has been done before KV is read or written."""
        return {} if self._card is None else {"after": self._card.mark()}

    def close(self) -> None:
        self.service.stop()


class Handoffs:
    """This process as D, the other one as P; a context manager."""

    def __init__(self, tools: Tools, settings: Settings) -> None:
        self.settings = settings
        self._pipe = tools.pipe
        self._side = Side("d0", tools.device, settings)
        self.memory, self.service = self._side.memory, self._side.service
        self._kv_address = str(self.call("open", settings))
        self.report = KvDone("", 0, "receive", KvReport())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._side.close()
        self.call("close")

    def ask(self, verb: str, *arguments: object) -> None:
        """Asks P; `answer` has what it says."""
        self._pipe.send((verb, arguments))

    def answer(self, seconds: float = WAIT_S) -> Any:
        """P's next answer."""
        if not self._pipe.poll(seconds):
            raise RuntimeError(f"P does not answer within {seconds:.0f} s")
        return self._pipe.recv()

    def answered(self) -> bool:
        return self._pipe.poll(0)

    def call(self, verb: str, *arguments: object) -> Any:
        self.ask(verb, *arguments)
        return self.answer()

    def new_ticket(self) -> Ticket:
        made = ticket(os.urandom(8).hex(), 1, kv_address=self._kv_address, lease_ms=LEASE_MS)
        return msgspec.structs.replace(made, canonical=self.settings.unlike is not None)

    def fetch(self, handed: Ticket, block_ids: Sequence[int]) -> None:
        self.service.fetch(handed, 0, block_ids, **self._side.after())

    def wait(self) -> KvDone:
        """The end of the one handoff that is under way. Raises RuntimeError if it failed."""
        return checked(self.end())

    def end(self) -> KvDone:
        """The end of it, however it ended. Raises RuntimeError if it does not."""
        deadline = time.monotonic() + WAIT_S
        while not (ended := self.service.drain()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"a handoff did not end within {WAIT_S:.0f} s")
            self.service.wait_end(1.0)
        return ended[0]

    def move(self, source: Sequence[int], target: Sequence[int]) -> float:
        """Seconds of one handoff of what these blocks of P hold, from D's asking on."""
        handed = self.new_ticket()
        self.call("offer", handed, source)
        start = time.perf_counter()
        self.fetch(handed, target)
        self.report = self.wait()
        return time.perf_counter() - start


class Stream:
    """Handoffs that follow each other, so many in flight. `turn` is what an engine calls between
    its steps."""

    def __init__(self, handoffs: Handoffs, prompt_blocks: int, in_flight: int) -> None:
        """P is asked for twice as many ahead, so that there is always one to fetch."""
        self._handoffs = handoffs
        self._free = [
            list(range(first, first + prompt_blocks))
            for first in range(0, in_flight * prompt_blocks, prompt_blocks)
        ]
        self._source = self._free[0]
        self._used: dict[str, list[int]] = {}
        self._offered: list[Ticket] = []
        self._asked = 0
        #: Of the handoffs that have ended.
        self.moved_bytes = 0
        #: What P answered that was no offer.
        self.answers: list[Any] = []
        for _ in range(2 * in_flight):
            self._ask()

    def turn(self) -> None:
        while self._handoffs.answered():
            self._take(self._handoffs.answer())
        for done in self._handoffs.service.drain():
            self.moved_bytes += checked(done).report.payload_bytes
            self._free.append(self._used.pop(done.request_id))
            self._ask()
        while self._free and self._offered:
            handed, target = self._offered.pop(0), self._free.pop()
            self._used[handed.request_id] = target
            self._handoffs.fetch(handed, target)

    def turn_until(self, ended: Callable[[], bool]) -> None:
        while not ended():
            self.turn()
            self._handoffs.service.wait_end(0.001)

    def finish(self) -> None:
        """What was asked for is not fetched any more; what is in flight ends."""
        deadline = time.monotonic() + WAIT_S
        while self._used or self._asked:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the handoffs in flight did not end within {WAIT_S:.0f} s")
            for done in self._handoffs.service.drain():
                self._used.pop(checked(done).request_id)
            while self._asked and self._handoffs.answered():
                self._take(self._handoffs.answer())
            self._handoffs.service.wait_end(0.001)
        self._handoffs.call("release", [handed.request_id for handed in self._offered])

    def _ask(self) -> None:
        self._handoffs.ask("offer", self._handoffs.new_ticket(), self._source)
        self._asked += 1

    def _take(self, answer: Any) -> None:
        if isinstance(answer, Ticket):
            self._offered.append(answer)
            self._asked -= 1
        else:
            self.answers.append(answer)


def checked(done: KvDone) -> KvDone:
    """Raises RuntimeError if this handoff failed."""
    if done.error or not done.report.complete:
        raise RuntimeError(f"a handoff failed: {done.error} {done.message}")
    return done


# ---------------------------------------------------------------- the far process


class Prefill:
    """P: each method is what D asks for by this name, and returns the answer."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._side: Side | None = None
        self._engine: Engine | None = None

    def open(self, settings: Settings) -> str:
        """Its address."""
        self._side = Side("p0", self._tools.device, settings)
        return self._side.address

    def close(self) -> None:
        if self._side is not None:
            self._side.close()
        self._side = None

    def fill(self, block_ids: list[int], seed: int) -> None:
        self.side.memory.fill(block_ids, seed)

    def offer(self, handed: Ticket, block_ids: list[int]) -> Ticket:
        """A prompt that is computed as a whole."""
        side = self.side
        side.service.offer(handed, len(block_ids))
        side.service.progress(key_of(handed), block_ids, len(block_ids), **side.after())
        side.service.drain()
        return handed

    def compute(self, handed: Ticket, block_ids: list[int], seed: int, groups: int) -> None:
        """Offers a prompt and computes it, so many groups of layers one after the other: the card
        is still at it when the service is told."""
        service, key, count = self.side.service, key_of(handed), len(block_ids)
        service.offer(handed, count)
        for layers in self.side.memory.fill_late(block_ids, seed, groups):
            service.layers_computed(key, block_ids, count, layers, **self.side.after())
        service.progress(key, block_ids, count, **self.side.after())

    def preempt(
        self, handed: Ticket, block_ids: list[int], later_ids: list[int], seed: int, wait_s: float
    ) -> None:
        """Offers a prompt, has computed its first half, takes the blocks back so much later, and
        spoils them at once; then the whole prompt is computed in other blocks."""
        side, key = self.side, key_of(handed)
        side.service.offer(handed, len(block_ids))
        side.service.progress(key, block_ids, len(block_ids) // 2, **side.after())
        time.sleep(wait_s)
        side.service.withdraw(key)
        side.memory.spoil(block_ids)
        side.memory.fill(later_ids, seed)
        side.service.progress(key, later_ids, len(later_ids), **side.after())

    def release(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.side.service.release((request_id, 1), "nobody fetches it")

    def steps(self, count: int) -> list[float]:
        """Seconds of each of so many steps, between which it goes on answering. The first call
        comes when nothing moves, for it finds out what a step is."""
        if self._engine is None:
            self._engine = Engine(self._tools.device)
        return self._engine.run(count, self.answer_all)

    def answer_all(self) -> None:
        """Answers what has been asked by now."""
        while self._tools.pipe.poll(0):
            self.answer_one()

    def answer_one(self) -> None:
        verb, arguments = self._tools.pipe.recv()
        verbs: dict[str, Callable[..., Any]] = {
            "open": self.open,
            "close": self.close,
            "fill": self.fill,
            "compute": self.compute,
            "offer": self.offer,
            "preempt": self.preempt,
            "release": self.release,
            "steps": self.steps,
        }
        self._tools.pipe.send(verbs[verb](*arguments))

    @property
    def side(self) -> Side:
        assert self._side is not None
        return self._side


def key_of(handed: Ticket) -> tuple[str, int]:
    return handed.request_id, handed.attempt


def serve(tools: Tools) -> None:
    prefill = Prefill(tools)
    try:
        while True:
            prefill.answer_one()
    finally:
        prefill.close()


def bench_geometry(device: str) -> Geometry:
    """Blocks of 1 MiB: of 16 tokens for a model with 16 layers and 8 heads of 128, in bfloat16."""
    return layers_first(16, 2048 if device == CUDA else 64, MIB // 16)


def unlike(layers: int, tokens: int, heads: int, token_bytes: int) -> tuple[LaidOut, LaidOut]:
    """Memory for so many tokens at P and at D: blocks of 16 tokens with all heads of a token
    together, and of 32 with all tokens of a head. K and V of one of them have so many bytes."""
    from common.kv.device.pages import TokenPage

    laid_out = []
    for block, tokens_first in ((16, True), (32, False)):
        page = TokenPage(heads, block, token_bytes, tokens_first)
        laid_out.append(LaidOut(layers_first(layers, tokens // block, page.page_bytes), page))
    return laid_out[0], laid_out[1]


def unlike_settings(path: str, like: Geometry, staging_mib: int = STAGING_MIB) -> Settings:
    """Handoffs of canonical blocks as large as those of `like`, and as many, between memories that
    are laid out differently."""
    token_bytes = like.page_bytes // 16 // UNLIKE_HEADS
    laid_out = unlike(like.layers, like.blocks * 16, UNLIKE_HEADS, token_bytes)
    return Settings(path, like, staging_mib, laid_out)

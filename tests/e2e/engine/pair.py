"""A prefill and a decode engine on real vLLM in this process' children, driven like daemons do."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from common.blocks import element_on_wire
from common.config import Config, from_mapping
from common.engine.open import open_engine
from common.engine.port import Engine, EngineRequest
from common.kv.messages import KvDone
from common.messages import Load, Role, Sampling, Ticket, TokenLogprobs
from common.net.kv_address import parts_between
from common.process.lifecycle import Tasks
from tests.rigs import messages

GREEDY = Sampling(max_tokens=16, temperature=0.0, ignore_eos=True)
ENGINE = {"max_num_seqs": 32, "max_num_batched_tokens": 2048, "kv_cache_mib": 192, "threads": 1}
LOAD_TIMEOUT_MS = 60_000.0
LEASE_MS = 60_000.0
ANSWER_MS = 30_000.0


def make_config(
    run_dir: Path,
    engine: dict[str, Any] | None = None,
    *,
    model: str = "baton-tiny",
    max_model_len: int = 4096,
    **kv: object,
) -> Config:
    kv = {"load_timeout_ms": LOAD_TIMEOUT_MS, "answer_ms": ANSWER_MS, **kv}
    worker = {"engine": {**ENGINE, **(engine or {})}, "kv": kv}
    return from_mapping(
        {
            "fleet": {"run_dir": str(run_dir)},
            "model": {"path": model, "dtype": "float32", "max_model_len": max_model_len},
            "prefill": {"p0": worker},
            "decode": {"d0": worker},
        }
    )


@dataclass
class Result:
    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    error: str = ""
    cached: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    seconds: float = 0.0
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Worker:
    """One engine and everything it said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.results: dict[str, Result] = {}
        self.kv: dict[tuple[str, int, str], KvDone] = {}
        #: Engine keys of streams that have left.
        self.left: set[str] = set()
        self.last_load = Load()
        self.batches = 0
        #: Tokens that were drafted, and those that were accepted.
        self.drafted = self.accepted = 0

    async def listen(self) -> None:
        while True:
            batch = await self.engine.next_batch()
            self.batches += 1
            self.last_load = batch.load or self.last_load
            if batch.drafts is not None:
                self.drafted += sum(batch.drafts.drafted)
                self.accepted += sum(batch.drafts.accepted)
            for end in batch.kv_done:
                self.kv[end.request_id, end.attempt, end.side] = end
            self.left.update(batch.left)
            for output in batch.outputs:
                result = self.results.setdefault(output.key, Result())
                result.tokens += output.token_ids
                result.cached = result.cached or output.cached_tokens
                result.logprobs += output.logprobs or []
                result.finish = result.finish or output.finish_reason
                result.error = result.error or output.error
                if output.finish_reason or output.error:
                    result.done.set()

    async def add(self, request: EngineRequest) -> Result:
        result = self.results[request.key] = Result()
        await self.engine.add(request)
        return result

    async def kv_end(self, request_id: str, side: str, seconds: float = 10.0) -> KvDone:
        await until(lambda: (request_id, 0, side) in self.kv, seconds)
        return self.kv[request_id, 0, side]

    async def empty(self, seconds: float = 10.0) -> float:
        """Seconds until no KV is held."""
        start = time.monotonic()
        await until(lambda: self.engine.load().kv_used == 0.0, seconds)
        return time.monotonic() - start


class Pair:
    """Both engines on one loop, and others; use as an async context inside it."""

    def __init__(self, prefill: Engine, decode: Engine, *, name: str = "req") -> None:
        """`name`: what its request ids begin with; they are never used twice of an engine."""
        self.prefill = Worker(prefill)
        self.decode = Worker(decode)
        self.others: list[Worker] = []
        self._name, self._count = name, 0

    async def __aenter__(self) -> Self:
        self._tasks = Tasks()
        for number, worker in enumerate((self.prefill, self.decode, *self.others)):
            self._tasks.start(f"listen-{number}", worker.listen())
            self._tasks.start(f"watch-{number}", worker.engine.watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.cancel_all()

    def request_id(self) -> str:
        self._count += 1
        return f"{self._name}{self._count}"

    def ticket(self, request_id: str, lease_ms: float = LEASE_MS, attempt: int = 0) -> Ticket:
        info, taker = self.prefill.engine.info, self.decode.engine.info
        ours, theirs = info.capacity, taker.capacity
        converted = ours.kv_meaning != theirs.kv_meaning
        return messages.ticket(
            request_id,
            attempt,
            secret=secrets.token_bytes(16),
            fingerprint=info.fingerprint,
            kv_address=info.kv_address,
            lease_ms=lease_ms,
            canonical=info.fingerprint != taker.fingerprint,
            parts=parts_between(info.kv_address, taker.kv_address),
            element=element_on_wire(ours.kv_element, theirs.kv_element) if converted else "",
        )

    def requests(
        self, prompt: list[int], sampling: Sampling = GREEDY, salt: str | None = None
    ) -> tuple[EngineRequest, EngineRequest]:
        name = self.request_id()
        ticket = self.ticket(name)
        return (
            EngineRequest(name, 0, Role.PREFILL, prompt, sampling, ticket, salt),
            EngineRequest(name, 0, Role.DECODE, prompt, sampling, ticket, salt),
        )

    async def hand_over(
        self, prompt: list[int], sampling: Sampling = GREEDY, salt: str | None = None
    ) -> tuple[Result, KvDone]:
        """Disaggregated, to the end on both sides."""
        at_p, at_d = self.requests(prompt, sampling, salt)
        start = time.monotonic()
        await self.prefill.add(at_p)
        result = await self.decode.add(at_d)
        await asyncio.wait_for(result.done.wait(), 60)
        result.seconds = time.monotonic() - start
        await self.prefill.kv_end(at_p.request_id, "send")
        return result, await self.decode.kv_end(at_p.request_id, "receive")

    async def alone(
        self, prompt: list[int], sampling: Sampling = GREEDY, worker: Worker | None = None
    ) -> Result:
        """On D, without P, or on this worker; a salt of its own keeps it off every cache."""
        name = self.request_id()
        result = await (worker or self.decode).add(
            EngineRequest(name, 0, Role.DECODE, prompt, sampling, None, name)
        )
        await asyncio.wait_for(result.done.wait(), 60)
        return result


def play(
    config: Config,
    work: Callable[[Pair], Coroutine[Any, Any, None]],
    decode: Config | None = None,
) -> None:
    """Opens a pair for this work alone. `decode`: as in `open_pair`."""
    play_on(open_pair(config, decode), work)


def play_on(pair: Pair, work: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    """This work alone, and closes the pair."""

    async def body() -> None:
        async with pair:
            await work(pair)
        await pair.decode.engine.close()
        await pair.prefill.engine.close()

    asyncio.run(body())


def open_pair(config: Config, decode: Config | None = None) -> Pair:
    """Before any loop runs. `decode`: of D, where it is not that of P."""
    prefill = open_engine(config, Role.PREFILL, "p0", "inc-p0")
    return Pair(prefill, open_engine(decode or config, Role.DECODE, "d0", "inc-d0"))


Run = Callable[[Callable[[Pair], Coroutine[Any, Any, None]]], None]
"""Runs a coroutine function on a pair."""


def on_one_loop(pair: Pair) -> Iterator[Run]:
    """For a fixture: runs coroutine functions on the pair, and closes it at the end."""
    with asyncio.Runner() as runner:

        def on_pair(work: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
            async def body() -> None:
                async with pair:
                    await work(pair)

            runner.run(body())

        yield on_pair
        for worker in (pair.decode, pair.prefill, *pair.others):
            runner.run(worker.engine.close())


async def until(check: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.002)

"""An engine that the test plays, as a worker sees it."""

from __future__ import annotations

import asyncio

from common.engine.port import Batch, EngineRequest
from common.errors import BatonError, Code
from common.kv.messages import KvStatus
from common.messages import (
    AdapterStatus,
    CopyAhead,
    KvCounts,
    Load,
    OrderStore,
    PrefixDelta,
    Ticket,
)
from tests.rigs.messages import engine_info


class PlayedEngine:
    """`asked`: what it was asked, one line each. The test says its load (`now`), its `batches`, of
    which an error is its end, the news of its prefix cache and what the probe finds (`death`); with
    `refuse` it takes no request and no adapter, and without `sleeps` it stays awake. `held`: its
    adapters."""

    def __init__(self, now: Load, *, seqs: int = 2, status: KvStatus | None = None) -> None:
        self.info = engine_info(seqs)
        self.now = now
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.batches: asyncio.Queue[Batch | BatonError] = asyncio.Queue()
        self.death: asyncio.Queue[BatonError] = asyncio.Queue()
        self.refuse = ""
        self.sleeps = True
        self.held: list[AdapterStatus] = []
        self.news: list[PrefixDelta] = []
        self.status = status or KvStatus(counts=KvCounts())

    def load(self) -> Load:
        return self.now

    async def add(self, request: EngineRequest) -> None:
        if self.refuse:
            raise BatonError(Code.CONTEXT_LENGTH_EXCEEDED, self.refuse)
        self.asked.put_nowait(f"add {request.key} {request.prompt_ids}")

    async def abort(self, request_id: str, attempt: int) -> None:
        self.asked.put_nowait(f"abort {request_id}#{attempt}")

    def leave(self, request_id: str, attempt: int) -> None:
        self.asked.put_nowait(f"leave {request_id}#{attempt}")

    def hand_over(self, ticket: Ticket, kept_attempt: int) -> None:
        self.asked.put_nowait(f"hand {ticket.request_id}#{kept_attempt} over to {ticket.decode}")

    def prefetch(self, request: EngineRequest) -> None:
        source = f" from {request.source.name}" if request.source is not None else ""
        self.asked.put_nowait(f"prefetch {request.key} {request.prompt_ids}{source}")

    def copy_ahead(self, order: CopyAhead) -> None:
        holder = order.holder.name if order.holder is not None else "nobody"
        self.asked.put_nowait(f"copy {order.request_id}#{order.attempt} to {holder}")

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return tuple(self.held)

    async def load_adapter(self, name: str, path: str) -> None:
        if self.refuse:
            raise BatonError(Code.CONFIG_INVALID, self.refuse)
        self.asked.put_nowait(f"load {name} from {path}")
        self.held.append(AdapterStatus(id=f"{name}@{path}", path=path, resident=True))

    async def unload_adapter(self, name: str) -> None:
        self.asked.put_nowait(f"unload {name}")
        self.held = [one for one in self.held if not one.id.startswith(f"{name}@")]

    def order_store(self, order: OrderStore) -> None:
        self.asked.put_nowait(f"{order.action} {order.names.hex()}")

    def connect_kv(self, kv_address: str) -> None:
        self.asked.put_nowait(f"connect {kv_address}")

    def prefix_cache_delta(self, *, whole: bool) -> list[PrefixDelta]:
        news, self.news = self.news, []
        return [PrefixDelta(cleared=True), *news] if whole else news

    def kv_status(self) -> KvStatus:
        return self.status

    async def sleep(self) -> bool:
        self.asked.put_nowait("sleep")
        return self.sleeps

    async def wake(self) -> None:
        self.asked.put_nowait("wake")

    async def watch(self) -> None:
        raise await self.death.get()

    async def next_batch(self) -> Batch:
        batch = await self.batches.get()
        if isinstance(batch, BatonError):
            raise batch
        return batch

    async def close(self) -> None:
        self.asked.put_nowait("close")

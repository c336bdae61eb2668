"""The pool daemon: it joins a pool's store to the routers.

Theory of operation: a pool has no model from which it could know how KV lies in memory. Its first
Hello therefore has no fingerprint, and a router answers with the layout of the first worker that
has a store (`Layout`). The pool makes its store by that and says Hello again, now with a
fingerprint and an address. It keeps this layout for as long as it runs. Routers then name it to
workers, which offer it what they have stored, and as a source of pulls. It reports what it has as a
worker does, by beats and prefix deltas, to every router. What it has is soft: when it dies, prompts
are computed again, and nothing else happens. What lies on its disk is found again by the next one.
"""

from __future__ import annotations

import asyncio
import os
import secrets

from common.clock import Clock, SystemClock
from common.config import Config, PoolConfig
from common.errors import BatonError, Code, WireError
from common.identity import identity_of
from common.kv.messages import KvStatus
from common.kv.peers.channel import WorkerIdentity
from common.messages import (
    WIRE_VERSION,
    Beat,
    Drain,
    Hello,
    Introduce,
    Layout,
    Leaving,
    Load,
    Message,
    OrderStore,
    Refused,
    Role,
    RouterToPool,
    Welcome,
)
from common.net.endpoints import control_addresses, kv_side_address
from common.net.wire import Decoder
from common.process.lifecycle import Tasks
from common.security.open import kv_secrets_file, open_curve
from common.telemetry.exposition import Exposition
from common.telemetry.log import Logger
from common.worker.kv_log import LinkLog
from common.worker.router_links import RouterLink, RouterLinks
from services.pool.metrics import PoolMetrics
from services.pool.store import PoolStore

BEAT_SECONDS = 0.5
WRITING_SECONDS = 0.05
"""Between two looks at the store while blocks wait to be written to its disk."""
STOPPING = Leaving(reason="stopping")


class Pool:
    """A `common.process.lifecycle.Service`."""

    stop_seconds = 6.0

    def __init__(
        self, config: Config, name: str, incarnation: str, clock: Clock, log: Logger
    ) -> None:
        """Raises ConfigError when the file has no such pool."""
        self._config = config
        self._own: PoolConfig = config.pool_named(name)
        self._name = name
        self._incarnation = incarnation
        self._clock = clock
        self._log = log
        self._link_log = LinkLog(log, self._own.kv.transports)
        self._curve = open_curve(config, log)
        self._routers: RouterLinks | None = None
        self._decoder: Decoder[RouterToPool] = Decoder(RouterToPool)
        self._exposition = Exposition(config, Role.POOL, name, PoolMetrics(self._blocks))
        loop = asyncio.get_running_loop()
        self._refused: asyncio.Future[Refused] = loop.create_future()
        self._layout: asyncio.Future[Layout] = loop.create_future()
        #: None until the layout is known.
        self._store: PoolStore | None = None
        self._status: KvStatus | None = None
        self._drained = False
        self._stopping = False

    async def start(self, tasks: Tasks) -> str:
        if self._curve is not None:
            self._curve.start()
            tasks.start("allow-list", self._curve.watch())
        self._routers = RouterLinks(
            control_addresses(self._config),
            identity_of(self._name, self._incarnation).encode(),
            hello=self._hello,
            on_frames=self._on_control,
            log=self._log,
            curve=self._curve,
        )
        self._routers.start()
        await self._exposition.start(tasks)
        tasks.start("store", self._hold())
        tasks.start("beat", self._beat())
        tasks.start("router-refusal", self._die_if_refused())
        store = self._own.kv.store
        room = f"{store.ram_mib} MiB" + (
            f", {store.disk_mib} MiB of disk" if store.disk_mib else ""
        )
        return f"pool {self._name} ready: {room}, of the layout of the first worker that is ready"

    async def stop(self) -> None:
        """Pulls that run end with an error; the blocks are computed where they are wanted."""
        self._stopping = True
        self._to_routers(STOPPING)
        await self._exposition.close()
        if self._store is not None:
            await asyncio.to_thread(self._store.close)
        if self._routers is not None:
            self._routers.close()
        if self._curve is not None:
            self._curve.close()

    async def _hold(self) -> None:
        """Raises BatonError when the store cannot be made, or its KV thread has failed."""
        layout = await self._layout
        identity = WorkerIdentity(
            self._name,
            self._incarnation,
            layout.fingerprint,
            secrets_file=kv_secrets_file(self._config, self._own.kv),
        )
        address = kv_side_address(self._config, self._name)
        try:
            store = PoolStore(identity, self._own.kv, layout, address, self._clock)
        except ValueError as error:
            raise BatonError(Code.CONFIG_INVALID, str(error)) from error
        await asyncio.to_thread(store.open)
        store.attach()
        self._store = store
        blocks = store.capacity.pull_blocks
        sentence = f"it holds up to {blocks} blocks of KV, as {layout.worker} has them"
        self._log.info("pool.open", sentence=sentence, kv_address=store.kv_address)
        for message in self._hello():
            self._to_routers(message)
        while True:
            self._status = store.update()
            for delta in store.holdings.deltas(whole=False):
                self._to_routers(delta)
            await asyncio.sleep(WRITING_SECONDS if store.pending else BEAT_SECONDS)

    async def _beat(self) -> None:
        while True:
            self._to_routers(self._make_beat())
            await asyncio.sleep(BEAT_SECONDS)

    async def _die_if_refused(self) -> None:
        refused = await self._refused
        raise BatonError(Code.WIRE_MISMATCH, f"the router refused this pool: {refused.message}")

    def _blocks(self) -> tuple[int, int]:
        """How many it has, and how many it can have."""
        if self._store is None:
            return 0, 0
        return len(self._store.holdings), self._store.capacity.pull_blocks

    def _to_routers(self, message: Message) -> None:
        if self._routers is not None:
            self._routers.broadcast(message)

    def _hello(self) -> list[Message]:
        layout = self._layout.result() if self._store is not None else None
        hello = Hello(
            wire_version=WIRE_VERSION,
            role=Role.POOL,
            name=self._name,
            incarnation=self._incarnation,
            pid=os.getpid(),
            fingerprint=layout.fingerprint if layout is not None else "",
            fingerprint_parts=layout.fingerprint_parts if layout is not None else {},
            model=self._config.model_of(self._own).served_name,
            kv_address=self._store.kv_address if self._store is not None else "",
            capacity=self._store.capacity if self._store is not None else None,
        )
        return [hello, STOPPING] if self._stopping else [hello]

    def _make_beat(self) -> Beat:
        status = self._status
        if status is None:
            return Beat(load=Load(), drained=self._drained)
        self._link_log.update(status)
        return Beat(
            load=Load(),
            drained=self._drained,
            kv_counts=status.counts,
            kv_holds=status.holds,
            kv_holds_total=status.holds_total,
        )

    def _on_control(self, link: RouterLink, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(frames[0])
        except WireError as error:
            self._log.warning("frame.dropped", sentence=error.message)
            return
        match message:
            case Welcome():
                self._welcomed(link, message)
            case Refused():
                if not self._refused.done():
                    self._refused.set_result(message)
            case Drain():
                self._drained = message.on
                self._to_routers(self._make_beat())
            case Layout():
                self._learn(message)
            case Introduce() | OrderStore() if self._store is not None:
                self._store.take(message)

    def _welcomed(self, link: RouterLink, message: Welcome) -> None:
        self._log.info("router.welcomed", router=message.name)
        link.welcomed()
        link.send(self._make_beat())
        if self._store is not None:
            for delta in self._store.holdings.deltas(whole=True):
                self._to_routers(delta)

    def _learn(self, layout: Layout) -> None:
        if not self._layout.done():
            self._layout.set_result(layout)
        elif self._layout.result().fingerprint != layout.fingerprint:
            ours = self._layout.result().worker
            sentence = (
                f"it goes on with the layout of {ours}, and holds none of {layout.worker}, whose "
                "fingerprint differs; a restart makes it take the new one"
            )
            self._log.warning("pool.other_layout", sentence=sentence)


def make(config: Config, name: str, log: Logger) -> Pool:
    """Inside the running loop. Raises ConfigError when the file has no such pool."""
    return Pool(config, name, secrets.token_hex(8), SystemClock(), log)

"""What lives on the KV thread: the UCX worker, both shells, the clock, and word to the daemon.

Theory of operation: all methods run on the thread's loop. One timer runs while something is held or
the daemon has not heard the latest counts; an idle worker has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Literal

from common.config import KvConfig
from common.kv.arena import shares_memory
from common.kv.codec import Codec, measured_rate
from common.kv.compression import Chooser, Mode
from common.kv.control import Channel, Heard, Identity
from common.kv.handoff.desk import Desk, Key
from common.kv.handoff.receiver import Wanted
from common.kv.handoff.tally import Tally
from common.kv.handoff.words import Ended
from common.kv.incoming import Incoming
from common.kv.layout import Geometry, KvMemory
from common.kv.messages import DaemonToKv, KvConnect, KvDone, KvListening, KvStatus
from common.kv.outgoing import Outgoing
from common.kv.plan import cuts, shape_of, wire_message_bytes, wished_groups
from common.kv.pulse import Pulse
from common.kv.side import KvSide
from common.kv.staging import Staging
from common.kv.ucx import Link, Ucx
from common.kv.ways import Ways
from common.messages import KvHold, KvReport, Ticket

TICK_S = 0.05
STATUS_S = 0.5
KV_HOLDS_MAX = 256


class Plane:
    """`on_end` is called once for each handoff that ends, on either side; `on_status` at most every
    `STATUS_S`, while something is held or newly counted."""

    def __init__(
        self,
        identity: Identity,
        config: KvConfig,
        memory: KvMemory,
        side_address: str,
        on_end: Callable[[KvDone], None],
        on_status: Callable[[KvStatus], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self._config = config
        self._identity = identity
        self._on_end = on_end
        self._on_status = on_status
        self._tally = Tally()
        self._status_due = 0.0
        self._unsaid = True
        geometry = memory.geometry
        payload = max(config.message_bytes, geometry.block_bytes)
        total = config.staging_mib << 20
        self._shape = shape = shape_of(geometry)
        mode: Mode = "none" if config.exact else config.compression
        self._allows_fp8 = mode != "none" and shape.fp8_page_bytes > 0
        self._chooser = _chooser(mode, geometry)
        self.ucx = Ucx(
            config.transports,
            self._accepted,
            interfaces=config.interfaces,
            rails=config.rails,
        )
        shares = shares_memory(config.transports)
        lending = Staging(payload, total, shared=shares)
        self._arena = lending.arena
        self.outgoing = Outgoing(
            Desk(shape, payload, config.lease_ms, self._tally),
            memory,
            lending,
            tally=self._tally,
            chooser=self._chooser,
            on_ended=self._sent,
            clock=self.now,
        )
        self.incoming = Incoming(
            identity,
            memory,
            Staging(max(wire_message_bytes(config.message_bytes), geometry.block_bytes), total),
            payload_bytes=payload,
            tally=self._tally,
            on_ended=self._received,
            clock=self.now,
            ways=lambda incoming: Ways(
                identity,
                incoming,
                open_link=self._open,
                clock=self.now,
                answer_seconds=config.answer_ms / 1000,
                borrows=shares,
            ),
        )
        self.incoming.on_lost = self._say_soon
        self._accepted_channels: dict[int, Channel] = {}
        self._next_peer = 1
        self._ticking = False
        self._side = KvSide(side_address, self._told) if side_address else None

    def start(self) -> str:
        self.ucx.start()
        address = f"{self._config.host}:{self.ucx.listen(self._config.port)}"
        if self._arena is not None:
            with contextlib.suppress(OSError):
                self._arena.open()
        if self._side is not None:
            self._side.start(KvListening(kv_address=address))
        return address

    def now(self) -> float:
        return time.monotonic()

    def act(self, act: Callable[[Plane], None]) -> None:
        act(self)
        self._keep_time()

    def fetch(self, ticket: Ticket, first_block: int, block_ids: list[int]) -> None:
        config, blocks = self._config, len(block_ids)
        groups = config.layer_groups or wished_groups(self._shape, blocks)
        wanted = Wanted(
            first_block=first_block,
            blocks=blocks,
            cuts=cuts(config.message_bytes, self._shape, groups, blocks),
            deadline=self.now() + config.load_timeout_ms / 1000,
            retries=config.retries,
            layer_groups=groups,
            fp8=self._allows_fp8,
        )
        self.incoming.fetch(ticket, wanted, block_ids)

    def release(self, key: Key, reason: str) -> None:
        self.incoming.cancel(key, reason)
        self.outgoing.release(key, reason)
        self._keep_time()

    def _told(self, message: DaemonToKv) -> None:
        if isinstance(message, KvConnect):
            self.incoming.connect(message.kv_address)
            self._keep_time()
        else:
            self.release((message.request_id, message.attempt), message.reason)

    def close(self) -> None:
        self.incoming.close()
        for channel in list(self._accepted_channels.values()):
            channel.close("the engine closes")
        if self._arena is not None:
            self._arena.close()
        if self._side is not None:
            self._side.close()

    def _open(self, address: str) -> Link:
        host, _, port = address.rpartition(":")
        return self.ucx.connect(host, int(port))

    def _accepted(self, link: Link) -> None:
        peer_id, self._next_peer = self._next_peer, self._next_peer + 1
        self._accepted_channels[peer_id] = Channel(
            peer_id,
            link,
            self._identity,
            Pulse(self.now(), self._config.answer_ms / 1000),
            on_open=lambda _: None,
            on_message=self._heard,
            on_closed=self._gone,
            staging=self._arena.name if self._arena is not None else "",
        )

    def _heard(self, channel: Channel, message: Heard) -> None:
        self.outgoing.heard(channel, message, self.now())
        self._say_soon()

    def _gone(self, channel: Channel, why: str, refused: bool) -> None:  # noqa: ARG002
        self._accepted_channels.pop(channel.id, None)
        self.outgoing.lost(channel, self.now())

    def _sent(self, ticket: Ticket, report: KvReport, ended: Ended) -> None:
        self._tally.sent(report, ended.error)
        self._tell_end("send", ticket, report, ended)

    def _received(self, ticket: Ticket, report: KvReport, ended: Ended) -> None:
        self._tally.received(report, ended.error)
        self._tell_end("receive", ticket, report, ended)

    def _tell_end(
        self, side: Literal["send", "receive"], ticket: Ticket, report: KvReport, ended: Ended
    ) -> None:
        sends = side == "send"
        done = KvDone(
            request_id=ticket.request_id,
            attempt=ticket.attempt,
            side=side,
            report=report,
            error=ended.error,
            message=ended.message,
            trouble=ended.trouble,
            peer=ticket.decode if sends else ticket.prefill,
            peer_incarnation=ticket.decode_incarnation if sends else ticket.prefill_incarnation,
            choice=self._chooser.news(ticket.decode) if sends else "",
        )
        self._on_end(done)
        if self._side is not None:
            self._side.send(done)
        self._keep_time()

    def _say_soon(self) -> None:
        """Also where nothing is held: a refusal only counts."""
        self._unsaid = True
        self._keep_time()

    def _keep_time(self) -> None:
        self._unsaid = self._unsaid or bool(len(self.outgoing) or len(self.incoming))
        if not self._ticking and self._unsaid:
            self._ticking = True
            self.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        now = self.now()
        self.outgoing.tick(now)
        self.incoming.tick()
        if now >= self._status_due:
            self._status_due, self._unsaid = now + STATUS_S, False
            self._say_status(now)
        self._keep_time()

    def _say_status(self, now: float) -> None:
        holds = [*self.outgoing.holds(now), *self.incoming.holds(now)]
        holds.sort(key=_oldest_first)
        status = KvStatus(
            counts=self._tally.snapshot(),
            holds=tuple(holds[:KV_HOLDS_MAX]),
            holds_total=len(holds),
            lanes=self.incoming.ways.lanes(),
            linked=self.incoming.ways.linked(),
        )
        self._on_status(status)
        if self._side is not None:
            self._side.say_status(status)


def _chooser(mode: Mode, geometry: Geometry) -> Chooser:
    inside, codec = geometry.inside, 0.0
    if mode == "auto" and inside is not None and inside.fp8_page_bytes:
        codec = measured_rate(Codec(inside), inside, time.perf_counter)
    return Chooser(mode, geometry.fp8_page_bytes / geometry.page_bytes, codec)


def _oldest_first(hold: KvHold) -> float:
    return -hold.age_ms

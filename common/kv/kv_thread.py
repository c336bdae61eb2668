"""What lives on the KV thread: the UCX worker, both sides' shells, the clock, the daemon's side
channel.

Theory of operation: all methods run on the thread's asyncio loop. One timer runs while something is
held or the daemon has not been sent the latest counts. A second one, slow, looks at who is
connected, because UCX does not tell of connections that never become links.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec
import structlog

from common.blocks import KvGroup
from common.clock import SystemClock
from common.config import KvConfig
from common.config.exposure import WILDCARDS
from common.identity import AttemptKey, is_pull, pull_key
from common.kv.canonical import CanonicalForm
from common.kv.compression.policy import Mode
from common.kv.daemon_link.ranks import merged_holds
from common.kv.daemon_link.side_channel import ThreadSideChannel
from common.kv.handoff.counters import HandoffCounters
from common.kv.handoff.protocol import Ended
from common.kv.handoff.ticket_table import TicketTable
from common.kv.layout import KvMemory, Mark, SeveralRegions
from common.kv.messages import (
    DaemonToKv,
    KvConnect,
    KvCopied,
    KvCopyAhead,
    KvDone,
    KvHandOver,
    KvKeep,
    KvListening,
    KvOffer,
    KvPull,
    KvRelease,
    KvStatus,
)
from common.kv.offers.kept_streams import KeptStreams
from common.kv.offers.pulls import own_ticket, pull_spec
from common.kv.offers.sharing import StoreSharing, not_copied, refuse
from common.kv.packing import Packings, measured_chooser
from common.kv.peers.accepted import accepted_links
from common.kv.peers.channel import Channel, ChannelEvents, HandoffMessage, WorkerIdentity
from common.kv.peers.connections import ConnectionListener, Connections, Reach
from common.kv.peers.keepalive import Keepalive
from common.kv.peers.secrets_file import watched_secrets
from common.kv.plan import shape_of
from common.kv.sides.fetch import Fetches
from common.kv.sides.receive import ReceiveSide
from common.kv.sides.send import SendSide
from common.kv.staging.pools import staging_pools
from common.kv.staging.shared_segment import shares_memory
from common.kv.store.arena import Arena
from common.kv.store.results import StoreSize
from common.kv.store.side import StoreSide, open_store
from common.kv.transport import listening_socket
from common.kv.transport.ucx import UcxLink, UcxWorker
from common.messages import KvReport, KvSource, Ticket
from common.security.refusals import Refusals
from common.telemetry.log import Logger

TICK_S = 0.05
CHECK_LINKS_S, CHECK_SILENT_S = 1.0, 0.5
STATUS_S = 0.5
KV_HOLDS_MAX = 256


class KvThread:
    """Connects the shells to each other, to UCX and to the daemon."""

    def __init__(
        self,
        identity: WorkerIdentity,
        config: KvConfig,
        memory: KvMemory,
        side_address: str,
        on_end: Callable[[KvDone], None],
        on_status: Callable[[KvStatus], None],
        *,
        groups: tuple[KvGroup, ...],
        canonical: Mapping[str, CanonicalForm],
    ) -> None:
        """`side_address`: where the daemon has bound its side channel; empty for none. `on_end` is
        called once for each handoff that ends, on either side; `on_status` at most every
        `STATUS_S`, while something is held or newly counted. The rest: as in `KvService`."""
        self.loop, self.stopped = asyncio.get_running_loop(), asyncio.Event()
        self._config, self._device = config, memory.device
        self._on_end, self._on_status = on_end, on_status
        self._counters = HandoffCounters()
        self._log: Logger = structlog.get_logger("baton")
        self._refusals = Refusals(self._log, SystemClock())
        self._secrets = watched_secrets(identity.secrets_file, self._log)
        self._status_due, self._status_pending = 0.0, True
        geometry, form = memory.geometry, identity.form
        one, layers = geometry.block_bytes, geometry.layers
        self._holds = KvListening(groups=groups, block_bytes=one, layers=layers, form=form)
        payload = max(config.message_bytes, one)
        shape = shape_of(geometry)
        mode: Mode = config.compression if config.may_lose else "none"
        self._receive_shape = shape.uncompressed() if mode == "none" else shape
        packings = Packings(memory, payload, canonical, identity.rank)
        self._chooser = measured_chooser(mode, geometry)
        self.ucx = UcxWorker(
            config.transports, self._on_accept, interfaces=config.interfaces, rails=config.rails
        )
        if self._device is not None:
            self._device.enter()
            self.ucx.on_progress = self._device.poll
        sending, receiving = staging_pools(config, geometry, self._device)
        self._identity = replace(identity, direct=bool(sending.card and receiving.card))
        self._segment = sending.host.segment
        made = packings.shape_of, payload, config.lease_ms, self._counters
        self.send_side = SendSide(
            TicketTable(*made, card_buffer_bytes=sending.card_bytes),
            packings,
            sending,
            counters=self._counters,
            chooser=self._chooser,
            on_ended=self._on_send_ended,
            clock=self.now,
        )
        self.kept_streams = self._make_kept_streams()
        shape = self._receive_shape
        self.fetches = Fetches(config, packings, shape, self._on_receive_ended, self.now)
        self.receive_side = self.fetches.receive_side = ReceiveSide(
            identity.rank,
            packings.plain,
            receiving,
            counters=self._counters,
            on_ended=self.fetches.end,
            clock=self.now,
            make_connections=self._make_connections,
        )
        self.receive_side.on_lost = self._request_status
        self.store_side: StoreSide | None = None
        self.sharing: StoreSharing | None = None
        self._next_peer, self._ticking = 1, False
        self._check_links_timer: asyncio.TimerHandle | None = None
        self._side = ThreadSideChannel(side_address, self._from_daemon) if side_address else None

    def _make_kept_streams(self) -> KeptStreams:
        return KeptStreams(
            self._identity,
            self.send_side,
            keep_ms=self._config.keep_ms,
            on_ended=self._on_send_ended,
            clock=self.now,
        )

    def start(self) -> str:
        """Returns the listener's `host:port`. Raises BatonError when UCX cannot be set up."""
        self.ucx.start()
        port = self.ucx.listen(self._config.port)
        host = self._config.host
        if not listening_socket.restrict(port, host) and host not in WILDCARDS:
            sentence = f"KV at port {port} answers on every interface, not only at {host}"
            self._log.warning("kv.unrestricted", sentence=sentence)
        self._accepted = accepted_links(self._config, port, self._make_channel, self._on_refused)
        self._check_links()
        address = f"{self._config.host}:{port}"
        if self.sharing is not None:
            self.sharing.offers.kv_address = address
        if self._segment is not None:
            with contextlib.suppress(OSError):
                self._segment.open()
        if self._side is not None:
            self._side.start(msgspec.structs.replace(self._holds, kv_address=address))
        return address

    def open_store(self, memory: KvMemory, size: StoreSize, on_ended: Callable[[], None]) -> None:
        """`on_ended`: as in `StoreSide`."""

        def ended() -> None:
            on_ended()
            self._request_status()

        arena, config = Arena(memory, size.slots), self._config
        arena.prepare()
        self.store_side = open_store(arena, size, self._counters, self.loop, ended)
        exact = not self._receive_shape.fp8_page_bytes
        if config.store.pull and exact and not isinstance(memory, SeveralRegions):
            sides = self.store_side, self.send_side, self.receive_side
            made = self._identity, arena, sides, config, self._counters, self.now
            self.sharing = StoreSharing(*made, tell=self._tell)
            self._holds = msgspec.structs.replace(self._holds, **size.told)

    def pull(
        self, key: AttemptKey, source: KvSource, hashes: bytes, ids: list[int], after: Mark | None
    ) -> None:
        """Fetches blocks out of the source's store to these. It ends once, as that of `key`."""
        spec = pull_spec(self._config, self._receive_shape, hashes, len(ids), self.now())
        self.receive_side.fetch(own_ticket(self._identity, key, source), spec, ids, after=after)

    def now(self) -> float:
        return time.monotonic()

    def call(self, call: Callable[[KvThread], None]) -> None:
        """Runs a call from another thread."""
        call(self)
        self._schedule_tick()

    def release(self, key: AttemptKey, reason: str) -> None:
        """Ends what either side holds for this attempt. Idempotent."""
        self.fetches.cancel(key, reason)
        for again in (False, True):
            self.receive_side.cancel(pull_key(key, again=again), reason)
        self.send_side.release(key, reason)
        self._schedule_tick()

    def _from_daemon(self, message: DaemonToKv) -> None:
        if self.sharing is not None:
            self.sharing.from_daemon(message)
        match message:
            case KvConnect():
                self.receive_side.connect(message.kv_address)
            case KvKeep():
                self.kept_streams.expect((message.request_id, message.attempt))
            case KvHandOver(ticket=ticket):
                self.kept_streams.hand_over((ticket.request_id, message.kept_attempt), ticket)
            case KvRelease():
                self.release((message.request_id, message.attempt), message.reason)
            case KvCopyAhead() if self.sharing is None and message.holder is not None:
                self._tell(not_copied(message, "its worker has no store for others"))
        self._schedule_tick()

    def close(self) -> None:
        self.receive_side.close()
        if self.store_side is not None:
            self.store_side.close()
        for channel in self._accepted.channels():
            channel.close("the engine closes")
        if self._check_links_timer is not None:
            self._check_links_timer.cancel()
        if self._segment is not None:
            self._segment.close()
        if self._side is not None:
            self._side.close()

    def _open_link(self, address: str) -> UcxLink:
        host, _, port = address.rpartition(":")
        return self.ucx.connect(host, int(port))

    def _make_connections(self, listener: ConnectionListener) -> Connections:
        return Connections(
            self._identity,
            listener,
            open_link=self._open_link,
            clock=self.now,
            answer_seconds=self._config.answer_ms / 1000,
            reach=Reach(shares_memory(self._config.transports), self._device, self._config.path),
            secrets=self._known_secrets,
            on_refused=self._on_refused,
        )

    def _on_accept(self, link: UcxLink) -> None:
        self._accepted.accept(link, self.now())

    def _make_channel(self, link: UcxLink) -> Channel:
        peer_id, self._next_peer = self._next_peer, self._next_peer + 1
        return Channel(
            peer_id,
            link,
            self._identity,
            Keepalive(self.now(), self._config.answer_ms / 1000),
            ChannelEvents(
                on_open=lambda _: None,
                on_message=self._on_message,
                on_refused=lambda reason, why: self._on_refused(
                    reason, f"{link.remote()[0]}: {why}"
                ),
                on_closed=self._on_channel_closed,
            ),
            secrets=self._known_secrets,
            segment_name=self._segment.name if self._segment is not None else "",
        )

    def _known_secrets(self) -> Sequence[bytes]:
        return self._secrets.value if self._secrets is not None else ()

    def _on_refused(self, reason: str, sentence: str) -> None:
        self._counters.links_refused += 1
        self._refusals.add(reason, f"KV: {sentence}")
        self._request_status()

    def _check_links(self) -> None:
        silent = self._accepted.check(self.now())
        if self._secrets is not None and self._secrets.refresh():
            for channel in [*self._accepted.channels(), *self.receive_side.connections.channels()]:
                channel.check_secret(self._secrets.value)
        pause = CHECK_SILENT_S if silent else CHECK_LINKS_S
        self._check_links_timer = self.loop.call_later(pause, self._check_links)

    def _on_message(self, channel: Channel, message: HandoffMessage) -> None:
        if not isinstance(message, KvPull | KvOffer):
            self.send_side.on_message(channel, message)
        elif self.sharing is not None:
            self.sharing.on_message(channel, message)
        else:
            refuse(self.send_side, channel, message)
        self._request_status()

    def _on_channel_closed(self, channel: Channel, why: str, refused: bool) -> None:  # noqa: ARG002
        self._accepted.forget(channel)
        if self.sharing is not None:
            self.sharing.on_channel_closed(channel)
        self.send_side.on_channel_closed(channel)

    def _on_send_ended(self, ticket: Ticket, report: KvReport, ended: Ended) -> None:
        if self.sharing is not None and self.sharing.on_send_ended(ticket, ended):
            return
        if ticket.decode:
            self._counters.count_sent(report, ended.error)
        self._report_end("send", ticket, report, ended)

    def _on_receive_ended(self, ticket: Ticket, report: KvReport, ended: Ended) -> None:
        copied = self.sharing is not None and self.sharing.on_receive_ended(ticket, report, ended)
        if not copied:
            self._counters.count_received(report, ended.error, pull=is_pull(ticket.request_id))
        if not copied or ended.trouble:
            self._report_end("receive", ticket, report, ended)
        self._request_status()

    def _report_end(
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
            held=ended.held,
            peer=ticket.decode if sends else ticket.prefill,
            peer_incarnation=ticket.decode_incarnation if sends else ticket.prefill_incarnation,
            choice=self._chooser.pop_new_reason(ticket.decode) if sends else "",
        )
        self._on_end(done)
        self._tell(done)
        self._schedule_tick()

    def _tell(self, message: KvCopied | KvDone) -> None:
        if self._side is not None:
            self._side.send(message)

    def _request_status(self) -> None:
        """Sends a status also when nothing is held: a refusal changes counts only."""
        self._status_pending = True
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        if not self._status_pending:
            held = len(self.send_side) + len(self.kept_streams) + len(self.receive_side)
            held += len(self.sharing) if self.sharing is not None else 0
            self._status_pending = held > 0
        if not self._ticking and self._status_pending:
            self._ticking = True
            self.loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking, now = False, self.now()
        self.send_side.tick()
        self.kept_streams.tick()
        self.receive_side.tick()
        if self.sharing is not None:
            self.sharing.tick()
        if now >= self._status_due:
            self._status_due, self._status_pending = now + STATUS_S, False
            self._publish_status(now)
        self._schedule_tick()

    def _publish_status(self, now: float) -> None:
        holds = merged_holds([*self.send_side.holds(now), *self.receive_side.holds(now)])
        holds.sort(key=lambda hold: -hold.age_ms)
        status = KvStatus(
            counts=self._counters.snapshot(),
            holds=tuple(holds[:KV_HOLDS_MAX]),
            holds_total=len(holds),
            lanes=self.receive_side.connections.lanes(),
            linked=self.receive_side.connections.open_addresses(),
            checkpoints=self.sharing.checkpoints() if self.sharing is not None else (),
        )
        self._on_status(status)
        if self._side is not None:
            self._side.send_status(status)

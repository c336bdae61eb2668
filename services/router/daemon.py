"""The router daemon: sockets and a clock around the core. It decides nothing.

Theory of operation: frames of the control socket become events, one at a time, and the resulting
actions are carried out at once. A send that finds its peer gone, or its queue full, is an event of
its own, handled after the actions before it. Every `PULSE_SECONDS` the core receives a Tick, or two
while requests wait, and each peer a Ping, so that the disconnect of a crashed peer is noticed. A
bug in the core ends the process: its state can be rebuilt, and a restart is safer than to go on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from datetime import UTC, datetime

import msgspec

from common.clock import Clock, SystemClock
from common.config import Config
from common.config.live import Reading
from common.errors import BatonError, Code, WireError
from common.messages import (
    GatewayToRouter,
    Hello,
    Ping,
    Role,
    ToRouter,
    WorkerToRouter,
)
from common.net.endpoints import ADMIN, CONTROL, admin_address, control_address
from common.net.sockets import Sent, Socket
from common.net.wire import Decoder, encode
from common.process import hook
from common.process.lifecycle import Tasks
from common.process.watchdog_and_reload import WatchdogAndReload
from common.security.open import open_curve
from common.security.speaker import Speaker
from common.telemetry.exposition import Exposition
from common.telemetry.log import Logger
from services.router import reload
from services.router.admin.answer import answer
from services.router.admin.event_log import EventLog
from services.router.admin.verb import View
from services.router.core import Core
from services.router.events import (
    Action,
    CallHook,
    DrainExpired,
    DrainStarted,
    Event,
    HookEnded,
    Note,
    PeerGone,
    Received,
    Recorded,
    Send,
    Tick,
)
from services.router.metrics.router import RouterMetrics
from services.router.settings import from_config
from services.router.timeline_export.sink import TimelineSink

PULSE_SECONDS = 0.2
CHECK_EVERY_PULSES = 50
CLOSE_SECONDS = 1.0
FINAL_SEND_SECONDS = 0.1


class Router:
    """A `common.process.lifecycle.Service`."""

    def __init__(self, config: Config, name: str, clock: Clock, log: Logger) -> None:
        self._config = config
        self._name = name
        self._clock = clock
        self._log = log
        self._verbose = logging.getLogger().isEnabledFor(logging.DEBUG)
        settings = from_config(config, name, secrets.token_hex(8))
        self._core = Core(
            settings,
            lambda: os.urandom(16),
            secrets.SystemRandom().random,
            clock.monotonic(),
        )
        self._first: Decoder[Hello] = Decoder(Hello)
        self._decoders: dict[Role, Decoder[ToRouter]] = {
            Role.GATEWAY: Decoder(GatewayToRouter),
            Role.PREFILL: Decoder(WorkerToRouter),
            Role.DECODE: Decoder(WorkerToRouter),
            Role.MIXED: Decoder(WorkerToRouter),
            Role.POOL: Decoder(WorkerToRouter),
        }
        self._dropped: dict[str, int] = {}
        self._timeline_sink = TimelineSink(config, name, clock, log)
        self._events: deque[Event] = deque()
        self._event_log = EventLog()
        self._watchdog_and_reload: WatchdogAndReload | None = None
        self._curve = open_curve(config, log)
        self._exposition = Exposition(config, Role.ROUTER, name, RouterMetrics(self._view))
        self._control: Socket | None = None
        self._admin: Socket | None = None
        self._emptied = asyncio.Event()
        self._tasks: Tasks | None = None
        self._broken: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    @property
    def stop_seconds(self) -> float:
        return self._config.fleet.drain_ms / 1000 + CLOSE_SECONDS

    async def start(self, tasks: Tasks) -> str:
        self._tasks = tasks
        control = control_address(self._config, self._name)
        admin = admin_address(self._config, self._name)
        self._control = Socket(CONTROL, bind=control, on_frames=self._on_control, curve=self._curve)
        self._admin = Socket(ADMIN, bind=admin, on_frames=self._on_admin)
        if self._curve is not None:
            self._core.shared.denied_to_host = self._denied_to_host
            self._curve.start()
            tasks.start("allow-list", self._curve.watch())
        self._control.start()
        self._admin.start()
        await self._exposition.start(tasks)
        self._watchdog_and_reload = tasks.watchdog_and_reload
        self._watchdog_and_reload.on_reload(reload.KEYS, self._apply)
        tasks.start("pulse", self._pulse())
        tasks.start("core", self._die_if_broken())
        return f"router {self._name} ready: control {self._control.address}, admin {admin}"

    async def stop(self) -> None:
        """Stop admitting, let the queue be placed, refuse what is left, close. Streams go on.

        The pause before closing lets peers read the final messages: a DEALER with ZMQ_IMMEDIATE
        drops what it has received and not yet read when its connection closes.
        """
        self._handle(DrainStarted())
        self._emptied.clear()
        if self._core.queued:
            try:
                async with asyncio.timeout(self._config.fleet.drain_ms / 1000):
                    await self._emptied.wait()
            except TimeoutError:
                left = self._core.queued
                sentence = f"{left} requests were still queued when the drain time ended"
                self._log.warning("router.drain_timeout", queued=left, sentence=sentence)
        self._handle(DrainExpired())
        await asyncio.sleep(FINAL_SEND_SECONDS)
        await self._timeline_sink.close()
        await self._exposition.close()
        for socket in (self._control, self._admin):
            if socket is not None:
                socket.close()
        if self._curve is not None:
            self._curve.close()

    def _handle(self, event: Event) -> None:
        """Handles one event, and those that follow from its actions."""
        outer = not self._events
        self._events.append(event)
        if not outer:
            return
        try:
            while self._events:
                for action in self._core.handle(self._events[0], self._clock.monotonic()):
                    self._carry_out(action)
                self._events.popleft()
        except Exception as error:  # noqa: BLE001 - after any error, no later event may be handled
            self._events.clear()
            if not self._broken.done():
                self._broken.set_result(error)
        if not self._core.queued:
            self._emptied.set()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Recorded):
            self._timeline_sink.add(action.record)
            return
        if isinstance(action, CallHook):
            self._call_hook(action)
            return
        if not isinstance(action, Send):
            self._note(action)
            return
        try:
            frame = encode(action.message)
        except WireError as error:
            self._drop("oversized answer", action.peer, error.message)
            return
        self._send(action.peer, [frame] if action.body is None else [frame, action.body])

    def _call_hook(self, action: CallHook) -> None:
        """In a task of its own, which holds nothing up."""
        assert self._tasks is not None, "the core gets its first event after the start"
        self._tasks.start(f"hook {action.order.id}", self._run_hook(action), ends=True)

    async def _run_hook(self, action: CallHook) -> None:
        scale, order = self._config.router.scale, action.order
        body = hook_body(action, self._clock.unix_ms())
        hooked = scale.out if order.out else scale.in_
        result = await hook.call(hooked, body, scale.hook_ms / 1000)
        self._handle(HookEnded(order.model, order.id, result.called, result.sentence))

    def _note(self, note: Note) -> None:
        if note.level != "debug":
            self._event_log.add(note, self._clock.unix_ms())
        elif not self._verbose:
            return
        write = {
            "debug": self._log.debug,
            "info": self._log.info,
            "warning": self._log.warning,
        }[note.level]
        write(note.event, sentence=note.sentence, **note.fields)

    def _send(self, peer: str, frames: list[bytes]) -> None:
        if self._control is None:
            return
        sent = self._control.send([peer.encode(), *frames])
        if sent is Sent.GONE:
            self._handle(PeerGone(peer, "its connection closed"))
        elif sent is Sent.FULL:
            self._handle(PeerGone(peer, "it takes no more messages"))

    def _on_control(self, frames: list[bytes]) -> None:
        try:
            peer = frames[0].decode()
        except UnicodeDecodeError:
            self._drop("bad identity", "?", "the identity is not text")
            return
        if not 2 <= len(frames) <= 3:
            self._drop("wrong frames", peer, f"{len(frames) - 1} frames instead of 1 or 2")
            return
        role = self._core.role_of(peer)
        decoder = self._first if role is None else self._decoders[role]
        try:
            message = decoder.decode(frames[1])
        except WireError as error:
            self._drop("before hello" if role is None else "bad frame", peer, error.message)
            return
        speaker = self._speaker(frames[0], message) if isinstance(message, Hello) else None
        self._handle(Received(peer, message, frames[2] if len(frames) == 3 else None, speaker))

    def _speaker(self, identity: bytes, hello: Hello) -> Speaker | None:
        """None where no keys are asked for."""
        host = self._control.host_of(identity) if self._control is not None else ""
        if self._curve is None or not host:
            return None
        return self._curve.gate.speaker(host, hello.role, hello.name)

    def _denied_to_host(self, host: str, role: Role, name: str) -> str:
        if self._curve is None or not host:
            return ""
        return self._curve.gate.speaker(host, role, name).denied

    def _drop(self, why: str, peer: str, sentence: str) -> None:
        self._dropped[why] = self._dropped.get(why, 0) + 1
        if self._verbose:
            self._log.debug("frame.dropped", why=why, peer=peer, sentence=sentence)

    def _on_admin(self, frames: list[bytes]) -> None:
        """A REQ client sends an empty frame first, and expects one before its answer."""
        envelope = frames[:2] if len(frames) > 2 and not frames[1] else frames[:1]
        question = frames[len(envelope) :]
        frame = question[0] if len(question) == 1 else b""
        if self._admin is not None:
            self._admin.send([*envelope, answer(frame, self._view)])

    def _view(self) -> View:
        dropped = dict(self._dropped)
        if self._curve is not None:
            refused = self._curve.gate.refusals.counts
            dropped |= {f"peer refused: {reason}": count for reason, count in refused.items()}
        return View(
            self._core.shared,
            self._clock.monotonic(),
            dropped,
            self._handle,
            self._reload,
            self._event_log,
        )

    def _reload(self) -> Reading:
        assert self._watchdog_and_reload is not None, "the admin socket opens at the start"
        return self._watchdog_and_reload.reload()

    def _apply(self, config: Config, changed: tuple[str, ...]) -> None:
        self._verbose = logging.getLogger().isEnabledFor(logging.DEBUG)
        for event in reload.orders(config.router, changed, self._core.tables.limits):
            self._handle(event)

    async def _pulse(self) -> None:
        ping = [encode(Ping())]
        pulses = 0
        while True:
            self._handle(Tick())
            for peer in self._core.peers():
                self._send(peer, ping)
            self._timeline_sink.flush()
            pulses += 1
            if pulses % CHECK_EVERY_PULSES == 0 and not any(self._core.shared.attempts()):
                self._core.check_invariants()
            await asyncio.sleep(PULSE_SECONDS / 2)
            if self._core.queued:
                self._handle(Tick())
            await asyncio.sleep(PULSE_SECONDS / 2)

    async def _die_if_broken(self) -> None:
        error = await self._broken
        raise BatonError(Code.INTERNAL, f"the router core is broken: {error!r}") from error


def hook_body(action: CallHook, unix_ms: int) -> bytes:
    """What a hook for workers gets (`[router.scale]`)."""
    order = action.order
    deadline = datetime.fromtimestamp((unix_ms + order.remaining_ms) / 1000, UTC)
    told: dict[str, object] = {
        "id": order.id,
        "direction": "out" if order.out else "in",
        "model": order.model,
        "role": order.role,
        "count": order.count,
        "why": order.why,
        "deadline": deadline.isoformat(timespec="seconds"),
        "deadline_ms": round(order.remaining_ms),
        "workers": action.workers,
    }
    return msgspec.json.encode(told if order.out else told | {"worker": order.worker})


def make(config: Config, name: str, log: Logger) -> Router:
    """Inside the running loop."""
    return Router(config, name, SystemClock(), log)

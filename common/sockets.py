"""The only module that touches ZeroMQ: callback sockets on the running asyncio loop.

Theory of operation: a `Socket` never waits. `send` gives the frames to libzmq at once or says why
it could not; arriving messages are handed to `on_frames` in a bounded burst, then the loop runs
others. libzmq's file descriptor is edge-triggered and may also be consumed by a send, so events are
read again after each send. A ROUTER is mandatory-routing: sending to a vanished peer says GONE at
once, which is how a crash is found by disconnect (see `Ping`), not by a watchdog. A DEALER queues
only on a live connection, so nothing stale is delivered to a restarted peer.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.utils.monitor import parse_monitor_message

from common.endpoints import Endpoint, Pattern
from common.errors import BatonError, Code
from common.wire import FRAME_BYTES_MAX

BURST = 128
BACKLOG = 1024
RECONNECT_MS = 20
RECONNECT_MS_MAX = 500
HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 3_000
LINGER_MS = 200
IPC_MODE = 0o660

_TYPES = {
    Pattern.ROUTER: zmq.ROUTER,
    Pattern.DEALER: zmq.DEALER,
    Pattern.PAIR: zmq.PAIR,
    Pattern.PUB: zmq.PUB,
    Pattern.SUB: zmq.SUB,
}


class Sent(enum.Enum):
    """What became of a send. Truthy only when libzmq took the message."""

    OK = "ok"
    FULL = "full"
    GONE = "gone"

    def __bool__(self) -> bool:
        return self is Sent.OK


class Socket:
    """One bound or connected socket of an `Endpoint`. Exactly one of `bind` and `connect` is given.

    `on_frames` gets all frames of one message, for a ROUTER with the sender's identity first. It
    must not raise for anything a peer can send. `on_connected` and `on_disconnected` (connecting
    side only) report the transport. Raises BatonError(CONFIG_INVALID) when the address cannot be
    bound.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        on_frames: Callable[[list[bytes]], None],
        bind: str | None = None,
        connect: str | None = None,
        identity: bytes = b"",
        on_connected: Callable[[], None] | None = None,
        on_disconnected: Callable[[], None] | None = None,
    ) -> None:
        if (bind is None) == (connect is None):
            raise ValueError("give exactly one of bind and connect")
        self._on_frames = on_frames
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._loop: asyncio.AbstractEventLoop | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        pattern = endpoint.binds if bind is not None else endpoint.connects
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(_TYPES[pattern])
        self._set_options(endpoint, pattern, identity)
        if connect is not None:
            if on_connected or on_disconnected:
                self._watch()
            self._socket.connect(connect)
            self.address = connect
        elif bind is not None:
            self.address = self._bind(bind)

    def _set_options(self, endpoint: Endpoint, pattern: Pattern, identity: bytes) -> None:
        options = {
            zmq.SNDHWM: endpoint.hwm,
            zmq.RCVHWM: endpoint.hwm,
            zmq.LINGER: LINGER_MS,
            zmq.MAXMSGSIZE: FRAME_BYTES_MAX,
            zmq.RECONNECT_IVL: RECONNECT_MS,
            zmq.RECONNECT_IVL_MAX: RECONNECT_MS_MAX,
            zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
            zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
            zmq.BACKLOG: BACKLOG,
        }
        if pattern is Pattern.ROUTER:
            options |= {zmq.ROUTER_MANDATORY: 1, zmq.ROUTER_HANDOVER: 1}
        elif pattern not in (Pattern.PUB, Pattern.SUB):
            options[zmq.IMMEDIATE] = 1
        for option, value in options.items():
            self._socket.setsockopt(option, value)
        if pattern is Pattern.SUB:
            self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        if identity:
            self._socket.setsockopt(zmq.IDENTITY, identity)

    def _bind(self, address: str) -> str:
        if address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).parent.mkdir(
                mode=0o750, parents=True, exist_ok=True
            )
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.close(linger=0)
            raise BatonError(
                Code.CONFIG_INVALID, f"cannot bind {address}: {error.strerror}"
            ) from error
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if bound.startswith("ipc://"):
            Path(bound.removeprefix("ipc://")).chmod(IPC_MODE)
        return bound

    def _watch(self) -> None:
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(events)

    def start(self) -> None:
        """Begins to deliver, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._deliver)
        if self._monitor is not None:
            self._loop.add_reader(self._monitor.fileno(), self._deliver_monitor)
            self._loop.call_soon(self._deliver_monitor)
        self._loop.call_soon(self._deliver)

    def send(self, frames: list[bytes]) -> Sent:
        """Never waits. For a ROUTER the first frame is the receiver's identity."""
        if self._socket.closed:
            return Sent.GONE
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.ETERM, zmq.ENOTSOCK):
                return Sent.GONE
            raise BatonError(Code.INTERNAL, f"send failed: {error.strerror}") from error
        if self._loop is not None and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._deliver)
        return Sent.OK

    def close(self) -> None:
        """Idempotent. What was sent has `LINGER_MS` to leave."""
        if self._socket.closed:
            return
        if self._monitor is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _deliver(self) -> None:
        for _ in range(BURST):
            if self._socket.closed:
                return
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_frames(frames)
        if self._loop is not None:
            self._loop.call_soon(self._deliver)

    def _deliver_monitor(self) -> None:
        while self._monitor is not None and not self._socket.closed:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_DISCONNECTED and self._on_disconnected:
                self._on_disconnected()
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._on_connected:
                self._on_connected()

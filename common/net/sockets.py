"""The only module that imports zmq: callback sockets on the running asyncio loop.

Theory of operation: a `Socket` never waits. `send` gives the frames to libzmq at once or returns
why it could not. Arriving messages are passed to `on_frames` in bursts (`bursts.py`), between which
the loop runs other callbacks. libzmq's file descriptor is edge-triggered and a send may consume its
event, so events are read again after each send. A ROUTER is mandatory-routing: sending to a peer
that is gone returns GONE at once, so that a crash is found by the lost connection (see `Ping`) and
not by a watchdog. A DEALER queues only on a live connection, so nothing stale is delivered to a
restarted peer.

With a `Curve`, TCP sockets are encrypted and mutually authenticated (ZeroMQ RFC 26, 27). A peer
that uses plaintext, holds a key that is not in the allow-list, or expects another key than ours
fails in the handshake, before libzmq accepts a message of it, and is counted. If another key than
the expected one answers, the connecting side tries the next key that the list has for the address,
so that a host's key can be replaced while the fleet runs. libzmq checks a key once, when a
connection is made; frames of a connection whose key was revoked later are dropped here, and so are
those that one host sends under the identity of another's (`peer_routes.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

from common.errors import BatonError, Code
from common.net.bursts import Bursts
from common.net.endpoints import Endpoint, Pattern
from common.net.peer_routes import PeerRoutes, with_secret
from common.process.owned_files import own_folder
from common.security.files import Secret
from common.security.gate import Gate

LARGE_BYTES = 1 << 20
"""A frame of that size, which has images, is sent from where it lies, because a copy takes
milliseconds."""
BACKLOG = 1024
RECONNECT_MS, RECONNECT_MS_MAX = 20, 500
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1_000, 3_000
LINGER_MS, HANDSHAKE_MS_MAX = 200, 10_000
IPC_MODE = 0o660
REDIAL_SECONDS, WATCH_SECONDS = 0.25, 1.0
ZAP_ADDRESS, ZAP_DOMAIN = "inproc://zeromq.zap.01", b"baton"

_TYPES = {
    Pattern.ROUTER: zmq.ROUTER,
    Pattern.DEALER: zmq.DEALER,
    Pattern.PAIR: zmq.PAIR,
    Pattern.PUB: zmq.PUB,
    Pattern.SUB: zmq.SUB,
}


class Dial(NamedTuple):
    """Where to connect, and with whose keys."""

    address: str
    curve: Curve | None = None


class Sent(enum.Enum):
    """The result of a send. It is true only if libzmq took the message."""

    OK = "ok"
    FULL = "full"
    GONE = "gone"

    def __bool__(self) -> bool:
        return self is Sent.OK


FAILED_HANDSHAKES = (
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def new_key_pair() -> tuple[str, str]:
    """A fresh CURVE (public, secret), as Z85."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


class Curve:
    """The keys of one process' TCP sockets; made by `common.security.open`. It has a context of its
    own, because libzmq has one authenticator per context. It is closed after the sockets that use
    it."""

    def __init__(self, secret: Secret, gate: Gate) -> None:
        self._secret = secret
        self._loop: asyncio.AbstractEventLoop | None = None
        self.gate = gate
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.connecting: set[Socket] = set()
        self._zap = self.context.socket(zmq.REP)
        self._zap.bind(ZAP_ADDRESS)

    def apply(self, socket: zmq.Socket[bytes], *, binds: bool) -> None:
        """Sets the keys on a socket. Without a running authenticator connections are refused, not
        accepted (ENFORCE_DOMAIN)."""
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret.secret.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self._secret.public.encode())
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS_MAX)
        if binds:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def start(self) -> None:
        """Begins to answer authentication requests, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._zap.fileno(), self._answer)
        self._loop.call_soon(self._answer)

    async def watch(self) -> None:
        """Reads the allow-list again whenever its file changes. Never returns."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Reads the allow-list again if its file changed, and cuts connections that it forbids."""
        if self.gate.refresh():
            for socket in list(self.connecting):
                socket.check_key()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._zap.fileno())
        self._zap.close(linger=0)
        self.context.destroy(linger=LINGER_MS)

    def _answer(self) -> None:
        while not self._zap.closed:
            try:
                question = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._zap.send_multipart(self.gate.answer(question))


class Socket:
    """One bound or connected socket of an `Endpoint`. Exactly one of `bind` and `connect` is given.

    `on_frames` gets all frames of one message, for a ROUTER with the sender's identity first. It
    must not raise for anything that a peer can send. `on_connected` and `on_disconnected` report
    the transport, on the connecting side only; with a `curve` the first one is called after both
    keys were verified. Raises BatonError(CONFIG_INVALID) if the address cannot be bound.
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
        curve: Curve | None = None,
    ) -> None:
        address = bind if connect is None else connect
        if address is None or (bind is not None and connect is not None):
            raise ValueError("give exactly one of bind and connect")
        self._on_frames = on_frames
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._loop: asyncio.AbstractEventLoop | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._curve = curve if address.startswith("tcp://") else None
        self._binds = bind is not None
        self._routes = PeerRoutes() if self._curve is not None and self._binds else None
        self._connected = False
        self._key = ""
        self._dials = 0
        self._bursts = Bursts(self._deliver)
        self._redialling: asyncio.TimerHandle | None = None
        pattern = endpoint.binds if self._binds else endpoint.connects
        context = zmq.Context.instance() if self._curve is None else self._curve.context
        self._socket: zmq.Socket[bytes] = context.socket(_TYPES[pattern])
        known = self._curve is None or self._binds or not identity
        self._set_options(endpoint, pattern, identity if known else with_secret(identity))
        if self._curve is not None or on_connected or on_disconnected:
            self._watch()
        self.address = self._bind(address) if self._binds else address
        if not self._binds:
            self._dial()

    def _set_options(self, endpoint: Endpoint, pattern: Pattern, identity: bytes) -> None:
        options = {
            zmq.SNDHWM: endpoint.hwm,
            zmq.RCVHWM: endpoint.hwm,
            zmq.LINGER: LINGER_MS,
            zmq.MAXMSGSIZE: endpoint.frame_bytes_max,
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
        if self._curve is not None:
            self._curve.apply(self._socket, binds=self._binds)

    def _bind(self, address: str) -> str:
        try:
            if address.startswith("ipc://"):
                own_folder(Path(address.removeprefix("ipc://")).parent)
            self._socket.bind(address)
        except (zmq.ZMQError, OSError) as error:
            self._socket.close(linger=0)
            sentence = f"cannot bind {address}: {error.strerror}"
            raise BatonError(Code.CONFIG_INVALID, sentence) from error
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        if bound.startswith("ipc://"):
            Path(bound.removeprefix("ipc://")).chmod(IPC_MODE)
        return bound

    def _watch(self) -> None:
        events = FAILED_HANDSHAKES
        if not self._binds:
            events |= zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(events)

    def _dial(self) -> None:
        """Connects, expecting the next of the keys that may answer at the address."""
        if self._curve is not None:
            self._curve.connecting.add(self)
            self._key = self._curve.gate.server_key(self.address, self._dials)
            if not self._key:
                sentence = f"the allow-list has no host with the address of {self.address}"
                self._curve.gate.refusals.add("no_server_key", sentence)
                self._redial_soon()
                return
            self._dials += 1
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, self._key.encode())
        self._socket.connect(self.address)

    def _redial_soon(self) -> None:
        if self._redialling is None:
            loop = asyncio.get_running_loop()
            self._redialling = loop.call_later(REDIAL_SECONDS, self._redial)

    def _redial(self) -> None:
        self._redialling = None
        if self._socket.closed or self._connected:
            return
        if self._key:
            with contextlib.suppress(zmq.ZMQError):  # libzmq may have given the address up
                self._socket.disconnect(self.address)
        self._dial()

    def check_key(self) -> None:
        """Cuts the connection if the allow-list no longer has its key for this address."""
        if self._curve is None or self._key in self._curve.gate.keys_at(self.address):
            return
        lost, self._connected = self._connected, False
        self._redial()
        if lost and self._on_disconnected:
            self._on_disconnected()

    def start(self) -> None:
        """Begins to deliver messages, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._bursts.run)
        if self._monitor is not None:
            self._loop.add_reader(self._monitor.fileno(), self._deliver_monitor)
            self._loop.call_soon(self._deliver_monitor)
        self._bursts.start()

    def send(self, frames: list[bytes]) -> Sent:
        """Sends one message without waiting. For a ROUTER the first frame is the receiver's
        identity."""
        if self._socket.closed:
            return Sent.GONE
        if self._curve is not None and not (self._binds or self._connected):
            return Sent.FULL  # a connection that is being cut may still take it
        if self._routes is not None:
            frames = [self._routes.routing_id(frames[0]), *frames[1:]]
        try:
            copy = len(frames[-1]) < LARGE_BYTES
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            return Sent.FULL
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.ETERM, zmq.ENOTSOCK):
                return Sent.GONE
            raise BatonError(Code.INTERNAL, f"send failed: {error.strerror}") from error
        if self._loop is not None and int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._bursts.soon()
        return Sent.OK

    def host_of(self, identity: bytes) -> str:
        """The host, by its name in the allow-list, that speaks under this identity. Empty where no
        keys are asked for."""
        return "" if self._routes is None else self._routes.host_of(identity)

    def close(self) -> None:
        """Closes the socket. Messages that were sent have `LINGER_MS` to leave. Idempotent."""
        if self._socket.closed:
            return
        if self._redialling is not None:
            self._redialling.cancel()
        if self._curve is not None:
            self._curve.connecting.discard(self)
        if self._monitor is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def deliver(self) -> None:
        """What has come, up to `BURST` messages, however long it takes. The loop does it itself."""
        self._bursts.run(math.inf)

    def _deliver(self) -> bool:
        """One message, if one has come."""
        if self._socket.closed:
            return False
        try:
            frames = self._receive()
        except zmq.Again:
            return False
        if frames is not None:
            self._on_frames(frames)
        return True

    def _receive(self) -> list[bytes] | None:
        """The next message; None if its sender may not send it. Raises zmq.Again."""
        if self._curve is None or self._routes is None:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        gate, user_id = self._curve.gate, str(parts[-1].get("User-Id"))
        host = gate.host_of(user_id)
        if host is None:
            return None
        routing_id, *frames = [part.bytes for part in parts]
        identity = self._routes.accept(routing_id, host)
        if identity is None:
            gate.impersonated(routing_id, host)
            return None
        return [identity, *frames]

    def _deliver_monitor(self) -> None:
        while self._monitor is not None and not self._socket.closed:
            try:
                report = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            event, value = report["event"], report["value"]
            if event & FAILED_HANDSHAKES:
                self._on_failed_handshake(event, value)
            elif event == zmq.EVENT_DISCONNECTED:
                lost, self._connected = self._connected, False
                if lost and self._on_disconnected:
                    self._on_disconnected()
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
                if self._on_connected:
                    self._on_connected()

    def _on_failed_handshake(self, event: int, value: int) -> None:
        """Counts a failed handshake. The gate itself counts the keys that it refuses."""
        if self._curve is None:
            return
        refusals = self._curve.gate.refusals
        if not self._binds:
            refused = event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
            reason = "refused_by_server" if refused else "wrong_server_key"
            why = "does not know our key" if refused else "broke the handshake: another key?"
            refusals.add(reason, f"{self.address} {why}; see `baton keygen`")
            self._redial_soon()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            refusals.add("no_handshake", f"a peer left {self.address} without a handshake")
        elif value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            refusals.add("plaintext", f"a peer spoke to {self.address} without CURVE")
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            refusals.add("bad_handshake", f"a peer took another key for that of {self.address}")

"""The stream socket: decode workers connect, send Hello, then one `Tokens` per engine step.

Nothing of a peer is decoded as tokens before its Hello was accepted. Bad frames are dropped and
counted. The gateway pings workers that stream to it several times a second: sending to a peer whose
connection is gone fails at once, so that its loss is found. It pings idle workers rarely, only to
forget those that are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from common.errors import Code, WireError
from common.identity import identity_of, name_of
from common.messages import (
    WIRE_VERSION,
    Abort,
    DecodeToGateway,
    Hello,
    Ping,
    Refused,
    Role,
    Tokens,
    Welcome,
)
from common.net.endpoints import STREAM
from common.net.sockets import Curve, Sent, Socket
from common.net.wire import Decoder, check_hello, encode
from common.telemetry.log import Logger
from services.gateway.requests.events import Event, Stepped, WorkerGone, WorkerUp

PEERS_MAX = 1_024


class WorkerLinks:
    """`handle` takes events into the core."""

    def __init__(
        self,
        name: str,
        incarnation: str,
        address: str,
        handle: Callable[[Event], None],
        log: Logger,
        curve: Curve | None = None,
    ) -> None:
        self._welcome = encode(
            Welcome(wire_version=WIRE_VERSION, name=name, incarnation=incarnation)
        )
        self._ping = encode(Ping())
        self._handle = handle
        self._log = log
        #: Identities of the workers whose Hello was accepted; at most `PEERS_MAX`.
        self._peers: dict[bytes, None] = {}
        self._hellos: Decoder[Hello] = Decoder(Hello)
        self._decoder: Decoder[DecodeToGateway] = Decoder(DecodeToGateway)
        #: Frames that were no message of the wire.
        self.dropped = 0
        self._curve = curve
        self._socket = Socket(STREAM, bind=address, on_frames=self._on_frames, curve=curve)

    @property
    def address(self) -> str:
        """Where workers connect to (a port 0 resolved)."""
        return self._socket.address

    def start(self) -> None:
        self._socket.start()

    def close(self) -> None:
        self._socket.close()

    def abort(self, worker: bytes, message: Abort) -> None:
        if worker in self._peers and self._socket.send([worker, encode(message)]) is Sent.GONE:
            self._lost(worker)

    def ping(self, workers: Iterable[bytes]) -> None:
        """Pings those of `workers` that have said Hello."""
        for worker in workers:
            if worker in self._peers and self._socket.send([worker, self._ping]) is Sent.GONE:
                self._lost(worker)

    def ping_all(self) -> None:
        self.ping(list(self._peers))

    def _lost(self, worker: bytes) -> None:
        self._peers.pop(worker, None)
        self._log.warning(
            "worker.lost", worker=_name(worker), sentence="its stream connection is gone"
        )
        self._handle(WorkerGone(worker, "its stream connection is gone"))

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            if len(frames) != 2:
                raise WireError(f"a message of {len(frames) - 1} frames, one is allowed")
            worker, frame = frames
            if worker not in self._peers:
                self._on_hello(worker, self._hellos.decode(frame))
                return
            message = self._decoder.decode(frame)
        except WireError as error:
            self.dropped += 1
            self._log.warning("frame.dropped", peer="worker", sentence=error.message)
            return
        if isinstance(message, Tokens):
            self._handle(Stepped(worker, message.deltas))
        else:
            self._on_hello(worker, message)

    def _on_hello(self, worker: bytes, hello: Hello) -> None:
        try:
            check_hello(hello)
            if hello.role is not Role.DECODE:
                raise WireError(f"{hello.role} {hello.name} may not use a stream socket")
            if worker != identity_of(hello.name, hello.incarnation).encode():
                raise WireError(f"{hello.name} greets under another identity than its socket's")
            self._check_host(worker, hello)
        except WireError as error:
            self.dropped += 1
            self._peers.pop(worker, None)
            self._log.warning("worker.refused", worker=hello.name, sentence=error.message)
            refused = Refused(code=Code.WIRE_MISMATCH, message=error.message)
            self._socket.send([worker, encode(refused)])
            return
        if len(self._peers) >= PEERS_MAX and worker not in self._peers:
            self.ping_all()
            if len(self._peers) >= PEERS_MAX:
                full = Refused(code=Code.NO_CAPACITY, message=f"over {PEERS_MAX} decode workers")
                self._socket.send([worker, encode(full)])
                return
        self._peers[worker] = None
        self._log.info("worker.welcomed", worker=hello.name)
        self._handle(WorkerUp(worker))
        self._socket.send([worker, self._welcome])

    def _check_host(self, worker: bytes, hello: Hello) -> None:
        """With keys, whether its host may speak for it. Raises WireError."""
        host = self._socket.host_of(worker)
        if self._curve is None or not host:
            return
        who = f"{hello.role} {hello.name}"
        denied = self._curve.gate.speaker(host, hello.role, hello.name).denied
        if denied:
            raise WireError(f"host {host} may not speak for {who}: {denied}")
        namesakes = [peer for peer in self._peers if _name(peer) == hello.name]
        self.ping(namesakes)  # forgets those that are gone
        for peer in namesakes:
            theirs = self._socket.host_of(peer)
            if peer in self._peers and theirs != host:
                sentence = f"host {host} may not take the place of {who}, which is of host {theirs}"
                raise WireError(sentence)


def _name(peer: bytes) -> str:
    return name_of(peer.decode(errors="replace"))

"""The stream socket: decode workers dial in, say Hello, then send one `Tokens` per engine step.

Nothing of a peer is decoded as tokens before its Hello was good. Bad frames are dropped and
counted. Workers that stream something are pinged several times a second: sending to a peer whose
connection is gone fails at once, which is how its death is found. Idle ones are pinged rarely, to
forget them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from common.endpoints import STREAM
from common.errors import Code, WireError
from common.log import Logger
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
from common.sockets import Curve, Sent, Socket
from common.wire import Decoder, check_hello, encode
from services.gateway.events import Event, Stepped, WorkerGone, WorkerUp

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
        self._peers: dict[bytes, None] = {}
        self._hellos: Decoder[Hello] = Decoder(Hello)
        self._decoder: Decoder[DecodeToGateway] = Decoder(DecodeToGateway)
        self.dropped = 0
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
            self._lose(worker)

    def ping(self, workers: Iterable[bytes]) -> None:
        """Those of `workers` that have said Hello."""
        for worker in workers:
            if worker in self._peers and self._socket.send([worker, self._ping]) is Sent.GONE:
                self._lose(worker)

    def ping_all(self) -> None:
        self.ping(list(self._peers))

    def _lose(self, worker: bytes) -> None:
        self._peers.pop(worker, None)
        name = worker.decode(errors="replace").split("|")[0]
        self._log.warning("worker.lost", worker=name, sentence="its stream connection is gone")
        self._handle(WorkerGone(worker, "its stream connection is gone"))

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            if len(frames) != 2:
                raise WireError(f"a message of {len(frames) - 1} frames, one is allowed")
            worker, frame = frames
            if worker not in self._peers:
                self._greet(worker, self._hellos.decode(frame))
                return
            message = self._decoder.decode(frame)
        except WireError as error:
            self.dropped += 1
            self._log.warning("frame.dropped", peer="worker", sentence=error.message)
            return
        if isinstance(message, Tokens):
            self._handle(Stepped(worker, message.deltas))
        else:
            self._greet(worker, message)

    def _greet(self, worker: bytes, hello: Hello) -> None:
        try:
            check_hello(hello)
            if hello.role is not Role.DECODE:
                raise WireError(f"{hello.role} {hello.name} has no business on a stream socket")
            if worker != f"{hello.name}|{hello.incarnation}".encode():
                raise WireError(f"{hello.name} greets under another identity than its socket's")
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

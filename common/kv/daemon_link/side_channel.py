"""Both ends of the side channel between a worker's daemon and its engine's KV thread.

Theory of operation: the daemon opens its engine before the event loop exists, and needs the
engine's KV address then. So the daemon's end is bound first, a short-lived loop receives
`KvListening`, and the daemon's loop takes over in `start`. A release that does not fit is dropped:
the lease then expires.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from common.errors import BatonError, Code, WireError
from common.kv.messages import DaemonToKv, KvCopied, KvDone, KvListening, KvStatus, KvToDaemon
from common.net.endpoints import KV_SIDE
from common.net.sockets import Socket
from common.net.wire import Decoder, encode

BACKLOG = 4096


class DaemonSideChannel:
    """The daemon's end of the channel to one KV thread."""

    def __init__(self, address: str) -> None:
        """`address`: an ipc endpoint. The stale socket file of a dead worker is replaced."""
        if address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
        self._decoder: Decoder[KvToDaemon] = Decoder(KvToDaemon)
        #: The KV thread's latest; None before the first.
        self.status: KvStatus | None = None
        self._listening: KvListening | None = None
        self._listening_received: asyncio.Event | None = None
        self._on_done: Callable[[KvDone], None] | None = None
        self._on_copied: Callable[[KvCopied], None] | None = None
        #: What came with the KV thread's first words, before `start`: what its disk has.
        self._early: deque[KvCopied] = deque(maxlen=BACKLOG)
        self._socket = Socket(KV_SIDE, bind=address, on_frames=self._on_frames)

    def wait_listening(self, seconds: float) -> KvListening:
        """What the KV thread says of itself. Blocks; not on a running loop. Raises BatonError."""

        async def wait() -> KvListening:
            self._listening_received = asyncio.Event()
            self._socket.start()
            while self._listening is None:
                await asyncio.wait_for(self._listening_received.wait(), seconds)
            return self._listening

        try:
            return asyncio.run(wait())
        except TimeoutError:
            raise BatonError(
                Code.ENGINE_FAILED, "the engine's KV thread did not report where it listens"
            ) from None
        finally:
            self._listening_received = None

    def start(
        self,
        on_done: Callable[[KvDone], None],
        on_copied: Callable[[KvCopied], None] | None = None,
    ) -> None:
        """Delivers `KvDone` and `KvCopied` on the running loop."""
        self._on_done, self._on_copied = on_done, on_copied
        while self._early and on_copied is not None:
            on_copied(self._early.popleft())
        self._socket.start()

    def send(self, message: DaemonToKv) -> None:
        self._socket.send([encode(message)])

    def deliver_waiting(self) -> None:
        """Delivers at once what has come and was not delivered yet."""
        self._socket.deliver()

    def close(self) -> None:
        self._socket.close()

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(frames[0])
        except WireError:
            return
        if isinstance(message, KvListening):
            self._listening = message
            if self._listening_received is not None:
                self._listening_received.set()
        elif isinstance(message, KvStatus):
            self.status = message
        elif isinstance(message, KvCopied):
            if self._on_copied is not None:
                self._on_copied(message)
            else:
                self._early.append(message)
        elif self._on_done is not None:
            self._on_done(message)


class ThreadSideChannel:
    """The KV thread's end.

    While the daemon does not receive, events wait, and the oldest is dropped when there are too
    many: a daemon that is away that long is replaced and need not catch up.
    """

    def __init__(self, address: str, on_message: Callable[[DaemonToKv], None]) -> None:
        self._on_message = on_message
        self._decoder: Decoder[DaemonToKv] = Decoder(DaemonToKv)
        self._backlog: deque[KvToDaemon] = deque(maxlen=BACKLOG)
        self._listening_message: KvListening | None = None
        self._socket = Socket(
            KV_SIDE, connect=address, on_frames=self._on_frames, on_connected=self._on_connected
        )

    def start(self, listening: KvListening) -> None:
        self._listening_message = listening
        self._socket.start()

    def send(self, message: KvToDaemon) -> None:
        self._backlog.append(message)
        self._flush()

    def send_status(self, status: KvStatus) -> None:
        """Lost when the daemon does not receive: the next status supersedes it."""
        if not self._backlog:
            self._socket.send([encode(status)])

    def close(self) -> None:
        self._socket.close()

    def _on_connected(self) -> None:
        if self._listening_message is not None:
            self._socket.send([encode(self._listening_message)])
        self._flush()

    def _flush(self) -> None:
        while self._backlog and self._socket.send([encode(self._backlog[0])]):
            self._backlog.popleft()

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            self._on_message(self._decoder.decode(frames[0]))
        except WireError:
            return

"""Both ends of the side channel between a worker's daemon and its engine's KV thread.

Theory of operation: the daemon's end is bound before the event loop exists, because the engine is
opened before it and its KV address is wanted then; a short-lived loop hears `KvListening`, the
daemon's loop takes over in `start`. Releases that do not fit are dropped: the lease then ends by
itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

from common.endpoints import KV_SIDE
from common.errors import BatonError, Code, WireError
from common.kv.messages import DaemonToKv, KvDone, KvListening, KvStatus, KvToDaemon
from common.sockets import Socket
from common.wire import Decoder, encode

BACKLOG = 4096


class SideChannel:
    """The daemon's end. `address`: an ipc endpoint; a stale socket file of a dead worker
    is replaced. `status`: the KV thread's latest."""

    def __init__(self, address: str) -> None:
        if address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
        self._decoder: Decoder[KvToDaemon] = Decoder(KvToDaemon)
        self.status: KvStatus | None = None
        self._listening = ""
        self._heard: asyncio.Event | None = None
        self._on_done: Callable[[KvDone], None] | None = None
        self._socket = Socket(KV_SIDE, bind=address, on_frames=self._frames)

    def wait_listening(self, seconds: float) -> str:
        """The KV thread's `host:port`. Blocks; not on a running loop. Raises BatonError."""

        async def wait() -> None:
            self._heard = asyncio.Event()
            self._socket.start()
            if not self._listening:
                await asyncio.wait_for(self._heard.wait(), seconds)

        try:
            asyncio.run(wait())
        except TimeoutError:
            raise BatonError(
                Code.ENGINE_FAILED, "the engine's KV thread did not say where it listens"
            ) from None
        finally:
            self._heard = None
        return self._listening

    def start(self, on_done: Callable[[KvDone], None]) -> None:
        """Delivers on the running loop."""
        self._on_done = on_done
        self._socket.start()

    def send(self, message: DaemonToKv) -> None:
        self._socket.send([encode(message)])

    def close(self) -> None:
        self._socket.close()

    def _frames(self, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(frames[0])
        except WireError:
            return
        if isinstance(message, KvListening):
            self._listening = message.kv_address
            if self._heard is not None:
                self._heard.set()
        elif isinstance(message, KvStatus):
            self.status = message
        elif self._on_done is not None:
            self._on_done(message)


class KvSide:
    """The KV thread's end. While the daemon does not listen, events wait, bounded: the
    oldest is dropped when full, for a daemon that is away that long is replaced, not caught up."""

    def __init__(self, address: str, on_told: Callable[[DaemonToKv], None]) -> None:
        self._on_told = on_told
        self._decoder: Decoder[DaemonToKv] = Decoder(DaemonToKv)
        self._backlog: deque[KvToDaemon] = deque(maxlen=BACKLOG)
        self._hello: KvListening | None = None
        self._socket = Socket(
            KV_SIDE, connect=address, on_frames=self._frames, on_connected=self._connected
        )

    def start(self, hello: KvListening) -> None:
        self._hello = hello
        self._socket.start()

    def send(self, message: KvToDaemon) -> None:
        self._backlog.append(message)
        self._flush()

    def say_status(self, status: KvStatus) -> None:
        """Lost when the daemon does not listen: the next one says more."""
        if not self._backlog:
            self._socket.send([encode(status)])

    def close(self) -> None:
        self._socket.close()

    def _connected(self) -> None:
        if self._hello is not None:
            self._socket.send([encode(self._hello)])
        self._flush()

    def _flush(self) -> None:
        while self._backlog and self._socket.send([encode(self._backlog[0])]):
            self._backlog.popleft()

    def _frames(self, frames: list[bytes]) -> None:
        try:
            self._on_told(self._decoder.decode(frames[0]))
        except WireError:
            return

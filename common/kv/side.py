"""The daemon's end of the side channel to its engine's KV thread.

Theory of operation: bound before the event loop exists, because the engine is opened before it and
its KV address is wanted then; a short-lived loop hears `KvListening`, the daemon's loop takes over
in `start`. Releases that do not fit are dropped: the lease then ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from common.endpoints import KV_SIDE
from common.errors import BatonError, Code, WireError
from common.kv.messages import DaemonToKv, KvDone, KvListening, KvToDaemon
from common.sockets import Socket
from common.wire import Decoder, encode


class SideChannel:
    """`address`: an ipc endpoint of this worker; a stale socket file of a dead one is replaced."""

    def __init__(self, address: str) -> None:
        if address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
        self._decoder: Decoder[KvToDaemon] = Decoder(KvToDaemon)
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
        elif self._on_done is not None:
            self._on_done(message)

"""Small messages between P and D on one link: hello first, then the KV protocol.

Theory of operation: every message is one slot of `SLOT_BYTES`, `length (uint32) | msgpack`, under
the tag the receiver chose. One receive is always posted. Both sides say `KvHello` and decode
nothing else before they have heard it; a side that sees another wire version or fingerprint says
`KvRefused` and closes. Sends that wait are bounded: a peer that takes nothing is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from common.errors import WireError
from common.kv.handoff.desk import Peer
from common.kv.messages import KvAbort, KvCredit, KvHello, KvPeer, KvReady, KvRefused, KvReleased
from common.kv.ucx import Link
from common.messages import WIRE_VERSION
from common.wire import Decoder, encode

SLOT_BYTES = 2048
PENDING_MAX = 1024
LAST_WORD_S = 0.2
_LENGTH = struct.Struct("<I")

Heard = KvReady | KvCredit | KvReleased | KvAbort | KvRefused


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is to other workers."""

    name: str
    incarnation: str
    fingerprint: str


class Channel:
    """Protocol messages over one link. `on_open` gets the peer once, `on_message` what follows,
    `on_closed` a sentence and whether the peer refused us for good; after it nothing comes."""

    def __init__(
        self,
        peer_id: int,
        link: Link,
        identity: Identity,
        *,
        on_open: Callable[[Channel], None],
        on_message: Callable[[Channel, Heard], None],
        on_closed: Callable[[Channel, str, bool], None],
    ) -> None:
        self.id = peer_id
        self.link = link
        self.peer: Peer | None = None
        self.closed = False
        self._identity = identity
        self._on_open = on_open
        self._on_message = on_message
        self._on_closed = on_closed
        self._decoder: Decoder[KvPeer] = Decoder(KvPeer)
        self._slot = np.zeros(SLOT_BYTES, np.uint8)
        self._pending = 0
        link.on_lost = lambda: self.close("the connection was lost")
        link.open(self._linked)

    def tell(self, message: msgspec.Struct) -> None:
        if self.closed:
            return
        frame = encode(message)
        if len(frame) > SLOT_BYTES - _LENGTH.size or self._pending >= PENDING_MAX:
            self.close("the peer takes no messages, or one is too long")
            return
        slot = np.empty(SLOT_BYTES, np.uint8)
        _LENGTH.pack_into(slot.data, 0, len(frame))
        slot[_LENGTH.size : _LENGTH.size + len(frame)] = np.frombuffer(frame, np.uint8)
        self._pending += 1
        self.link.send(slot, self.link.send_tag, self._sent)

    def close(self, why: str, *, refused: bool = False) -> None:
        if self.closed:
            return
        self.closed = True
        self.link.close()
        self._on_closed(self, why, refused)

    def _linked(self, error: str | None) -> None:
        if error is not None:
            self.close(error)
            return
        self._listen()
        own = self._identity
        self.tell(
            KvHello(
                wire_version=WIRE_VERSION,
                name=own.name,
                incarnation=own.incarnation,
                fingerprint=own.fingerprint,
            )
        )

    def _sent(self, error: str | None) -> None:
        self._pending -= 1
        if error is not None:
            self.close(error)

    def _listen(self) -> None:
        if not self.closed:
            self.link.receive(self._slot, self.link.receive_tag, self._arrived)

    def _arrived(self, error: str | None) -> None:
        if self.closed:
            return
        if error is not None:
            self.close(error)
            return
        try:
            (length,) = _LENGTH.unpack_from(self._slot.data, 0)
            if length > SLOT_BYTES - _LENGTH.size:
                raise WireError(f"a control message of {length} bytes")
            frame = self._slot[_LENGTH.size : _LENGTH.size + length].tobytes()
            message = self._decoder.decode(frame)
        except WireError as wrong:
            self.close(wrong.message)
            return
        self._listen()
        self._heard(message)

    def _heard(self, message: KvPeer) -> None:
        if isinstance(message, KvHello):
            self._hello(message)
        elif self.peer is not None:
            self._on_message(self, message)
        elif isinstance(message, KvRefused):
            self.close(message.message, refused=True)
        else:
            self.close("the peer spoke before its hello")

    def _hello(self, hello: KvHello) -> None:
        own = self._identity
        wrong = ""
        if hello.wire_version != WIRE_VERSION:
            wrong = f"wire version {hello.wire_version} is not {WIRE_VERSION}"
        elif hello.fingerprint != own.fingerprint:
            wrong = f"fingerprint {hello.fingerprint[:12]} is not {own.fingerprint[:12]}"
        if wrong:
            code = "wire_mismatch"
            self.tell(KvRefused(transfer=0, code=code, message=f"{own.name}: {wrong}"))
            self.link.close_later(LAST_WORD_S)
            self._finish(f"{hello.name}: {wrong}")
            return
        if self.peer is None:
            self.peer = Peer(self.id, hello.name, hello.incarnation)
            self._on_open(self)

    def _finish(self, why: str) -> None:
        self.closed = True
        self._on_closed(self, why, True)

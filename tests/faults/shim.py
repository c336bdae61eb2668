"""Bends messages below our code: wraps `UcxLink.send` of the process that it is installed in. Of a
loaned message only the offset is sent; the message is bent where it lies.

The handoff that a message belongs to is read off the wire, from the control messages that pass in
either direction. A fault is reported to the driver before it is done, so that nothing that a killed
process did stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from common.errors import WireError
from common.kv.checksum.header import HEADER_BYTES, INDEX_BITS
from common.kv.messages import (
    KvHello,
    KvMapped,
    KvOffer,
    KvPeerMessage,
    KvPing,
    KvPong,
    KvReady,
    KvTaken,
)
from common.kv.peers.channel import HEAD_BYTES
from common.kv.transport import ucx
from common.net.wire import Decoder
from tests.faults.loaned import LoanedMessages
from tests.faults.plan import DATA, Fault

HOLD_MAX_S = 0.06
LATE_S = 0.4
LASTING = frozenset({"flip-always"})
NOBODYS = ("KvHello", "KvMapped")
"""What belongs to a connection: it suffers what is meant for the first handoff that waits."""
OnFault = Callable[[str, str, int, int], None]
"""Fault kind, request, transfer, index."""


class Shim:
    """`aim` is added to every target's name: anything but "" misses them all (a control run)."""

    def __init__(self, on_fault: OnFault, aim: str = "") -> None:
        self.faults: dict[str, Fault] = {}
        self.extra = 0
        self._lent = LoanedMessages()
        self._on_fault = on_fault
        self._aim = aim
        self._decoder: Decoder[KvPeerMessage] = Decoder(KvPeerMessage)
        self._names: dict[int, str] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._held: dict[int, Callable[[], None]] = {}
        self._last_data = np.zeros(0, np.uint8)

    def install(self) -> None:
        self._lent.install()
        send, receive = ucx.UcxLink.send, ucx.UcxLink.receive

        def bent(link: ucx.UcxLink, buffer: ucx.Buffer, tag: int, done: ucx.Done) -> None:
            self._send(link, lambda part, then: send(link, part, tag, then), buffer, tag, done)

        def read(link: ucx.UcxLink, buffer: ucx.Buffer, tag: int, done: ucx.Done) -> None:
            def seen(error: str | None) -> None:
                if error is None and not tag & ucx.DATA_TAG:
                    self._identify(buffer)
                done(error)

            receive(link, buffer, tag, seen)

        ucx.UcxLink.send = bent  # type: ignore[method-assign,assignment]
        ucx.UcxLink.receive = read  # type: ignore[method-assign,assignment]

    def _send(
        self,
        link: ucx.UcxLink,
        send: Callable[[ucx.Buffer, ucx.Done], None],
        buffer: ucx.Buffer,
        tag: int,
        done: ucx.Done,
    ) -> None:
        transfer, index = 0, 0
        loan: ucx.Buffer | None = None
        if tag & ucx.DATA_TAG:
            target = DATA
            transfer, index = divmod(tag & ~ucx.DATA_TAG, 1 << INDEX_BITS)
            request = self._names.get(transfer, "")
            loan = self._lent.message(buffer, tag)
        else:
            target, request, transfer = self._identify(buffer)
        has_content = target != DATA or loan is not None or buffer.nbytes > HEADER_BYTES
        fault = self._fault(target, request) if has_content else None
        held = self._held.pop(id(link), None)
        if fault is None:
            send(buffer, done)
        else:
            self._on_fault(fault.kind, request, transfer, index)
            self._apply(fault, link, send, buffer, done, loan)
        if target == DATA and has_content:
            self._last_data = (buffer if loan is None else loan).copy()
        if held is not None:
            held()

    def _fault(self, target: str, request: str) -> Fault | None:
        """The fault that this message shall suffer."""
        if target in NOBODYS:
            request = next((n for n, f in self.faults.items() if f.target == target), "")
        fault = self.faults.get(request)
        if fault is None or fault.target + self._aim != target:
            return None
        number = self._seen[request, target]
        self._seen[request, target] += 1
        if number < fault.nth:
            return None
        if fault.what not in LASTING:
            del self.faults[request]
        return fault

    def _apply(
        self,
        fault: Fault,
        link: ucx.UcxLink,
        send: Callable[[ucx.Buffer, ucx.Done], None],
        buffer: ucx.Buffer,
        done: ucx.Done,
        loan: ucx.Buffer | None,
    ) -> None:
        owner, what, copy = link._owner, fault.what, buffer.copy()
        if what == "reset":
            link.close()
        if what in ("drop", "reset"):
            owner.call_soon(done, None if what == "drop" else "the connection is lost")
        elif what == "delay":
            owner.call_later(fault.amount * HOLD_MAX_S, lambda: send(buffer, done))
        elif what == "reorder":
            self._hold(link, lambda: send(buffer, done))
        elif what == "truncate":
            send(copy[: int(fault.amount * _used(copy, fault.target))], done)
        elif what in ("duplicate", "late-copy"):
            send(buffer, done)
            late = 0.0 if what == "duplicate" else LATE_S
            owner.call_later(late, lambda: self._again(send, copy))
        elif loan is not None:
            self._bend(fault, loan)
            send(buffer, done)
        else:
            self._bend(fault, copy)
            send(copy, done)

    def _bend(self, fault: Fault, message: ucx.Buffer) -> None:
        """Same length, other content."""
        first, upto = {
            "flip": (HEADER_BYTES, message.nbytes),
            "flip-always": (HEADER_BYTES, message.nbytes),
            "header": (0, HEADER_BYTES),
            "garble": (0, _used(message, fault.target)),
            "replay": (HEADER_BYTES, message.nbytes),
        }[fault.what]
        if fault.what == "replay":
            older = self._last_data[first:upto]
            message[first : first + older.nbytes] = older
        else:
            at = first + int(fault.amount * (upto - first))
            message[at] ^= 1 << int(fault.amount * 997) % 8

    def _hold(self, link: ucx.UcxLink, act: Callable[[], None]) -> None:
        """Until another message has gone out on this link, or a moment has passed."""
        pending = True

        def once() -> None:
            nonlocal pending
            if pending:
                pending = False
                act()

        self._held[id(link)] = once
        link._owner.call_later(HOLD_MAX_S, once)

    def _again(self, send: Callable[[ucx.Buffer, ucx.Done], None], copy: ucx.Buffer) -> None:
        """A repeated message that nobody asked for may stay pending: not the product's leak."""
        self.extra += 1

        def over(_: str | None) -> None:
            self.extra -= 1

        send(copy, over)

    def _identify(self, slot: ucx.Buffer) -> tuple[str, str, int]:
        """Kind, request and transfer of a control message; what is bent is nobody's."""
        try:
            message = self._decoder.decode(slot[HEAD_BYTES : _end(slot)].tobytes())
        except WireError:
            return "", "", 0
        if isinstance(message, KvHello | KvMapped | KvPing | KvPong | KvOffer | KvTaken):
            return type(message).__name__, "", 0
        if isinstance(message, KvReady):
            self._names[message.transfer] = message.request_id
        request = self._names.get(message.transfer, "")
        return type(message).__name__, request, message.transfer


def _used(buffer: ucx.Buffer, target: str) -> int:
    """Bytes of a buffer with content: control messages fill their frame in part."""
    return buffer.nbytes if target == DATA else _end(buffer)


def _end(frame: ucx.Buffer) -> int:
    """Where the body of a control message ends in its frame."""
    return int(frame[:2].view("<u2")[0]) + HEAD_BYTES

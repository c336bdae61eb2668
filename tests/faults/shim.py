"""Bends messages below our code: wraps `Link.send` of the process it is installed in. Of a lent
message what goes out is a pointer; the message is bent where it lies.

Which handoff a message belongs to is read off the wire, from the control messages that pass in
either direction. What is done is told to the driver before it is done, so that nothing that a
killed process did stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from common.errors import WireError
from common.kv import ucx
from common.kv.control import HEAD_BYTES, unpack
from common.kv.digest import HEADER_BYTES, INDEX_BITS
from common.kv.messages import KvHello, KvMapped, KvPeer, KvPing, KvPong, KvReady
from common.wire import Decoder
from tests.faults.lent import Lent
from tests.faults.plan import DATA, Fault

HOLD_MAX_S = 0.06
LATE_S = 0.4
LASTING = frozenset({"flip-always"})
NOBODYS = ("KvHello", "KvMapped")
"""What belongs to a connection: it suffers what is meant for the first handoff that waits."""
Say = Callable[[str, str, int, int], None]
"""Fault kind, request, transfer, index."""


class Shim:
    """`aim` is added to every target's name: anything but "" misses them all (a control run)."""

    def __init__(self, say: Say, aim: str = "") -> None:
        self.faults: dict[str, Fault] = {}
        self.extra = 0
        self._lent = Lent()
        self._say = say
        self._aim = aim
        self._decoder: Decoder[KvPeer] = Decoder(KvPeer)
        self._names: dict[int, str] = {}
        self._seen: Counter[tuple[str, str]] = Counter()
        self._held: dict[int, Callable[[], None]] = {}
        self._last_data = np.zeros(0, np.uint8)

    def install(self) -> None:
        self._lent.install()
        send, receive = ucx.Link.send, ucx.Link.receive

        def bent(link: ucx.Link, buffer: ucx.Buffer, tag: int, done: ucx.Done) -> None:
            self._send(link, lambda part, then: send(link, part, tag, then), buffer, tag, done)

        def read(link: ucx.Link, buffer: ucx.Buffer, tag: int, done: ucx.Done) -> None:
            def seen(error: str | None) -> None:
                if error is None and not tag & ucx.DATA_TAG:
                    self._identify(buffer)
                done(error)

            receive(link, buffer, tag, seen)

        ucx.Link.send = bent  # type: ignore[method-assign,assignment]
        ucx.Link.receive = read  # type: ignore[method-assign,assignment]

    def _send(
        self,
        link: ucx.Link,
        send: Callable[[ucx.Buffer, ucx.Done], None],
        buffer: ucx.Buffer,
        tag: int,
        done: ucx.Done,
    ) -> None:
        transfer, index = 0, 0
        lent: ucx.Buffer | None = None
        if tag & ucx.DATA_TAG:
            target = DATA
            transfer, index = divmod(tag & ~ucx.DATA_TAG, 1 << INDEX_BITS)
            request = self._names.get(transfer, "")
            lent = self._lent.message(buffer, tag)
        else:
            target, request, transfer = self._identify(buffer)
        says = target != DATA or lent is not None or buffer.nbytes > HEADER_BYTES
        fault = self._fault(target, request) if says else None
        held = self._held.pop(id(link), None)
        if fault is None:
            send(buffer, done)
        else:
            self._say(fault.kind, request, transfer, index)
            self._apply(fault, link, send, buffer, done, lent)
        if target == DATA and says:
            self._last_data = (buffer if lent is None else lent).copy()
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
        link: ucx.Link,
        send: Callable[[ucx.Buffer, ucx.Done], None],
        buffer: ucx.Buffer,
        done: ucx.Done,
        lent: ucx.Buffer | None,
    ) -> None:
        owner, what, copy = link._owner, fault.what, buffer.copy()
        if what == "reset":
            link.close()
        if what in ("drop", "reset"):
            owner.soon(done, None if what == "drop" else "the connection is lost")
        elif what == "delay":
            owner.later(fault.amount * HOLD_MAX_S, lambda: send(buffer, done))
        elif what == "reorder":
            self._hold(link, lambda: send(buffer, done))
        elif what == "truncate":
            send(copy[: int(fault.amount * _used(copy, fault.target))], done)
        elif what in ("duplicate", "late-copy"):
            send(buffer, done)
            late = 0.0 if what == "duplicate" else LATE_S
            owner.later(late, lambda: self._again(send, copy))
        elif lent is not None:
            self._bend(fault, lent)
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

    def _hold(self, link: ucx.Link, act: Callable[[], None]) -> None:
        """Until another message has gone out on this link, or a moment has passed."""
        pending = True

        def once() -> None:
            nonlocal pending
            if pending:
                pending = False
                act()

        self._held[id(link)] = once
        link._owner.later(HOLD_MAX_S, once)

    def _again(self, send: Callable[[ucx.Buffer, ucx.Done], None], copy: ucx.Buffer) -> None:
        """A repeated message that nobody asked for may stay pending: not the product's leak."""
        self.extra += 1

        def over(_: str | None) -> None:
            self.extra -= 1

        send(copy, over)

    def _identify(self, slot: ucx.Buffer) -> tuple[str, str, int]:
        """Kind, request and transfer of a control message; what is bent is nobody's."""
        try:
            message = self._decoder.decode(unpack(slot))
        except WireError:
            return "", "", 0
        if isinstance(message, KvHello | KvMapped | KvPing | KvPong):
            return type(message).__name__, "", 0
        if isinstance(message, KvReady):
            self._names[message.transfer] = message.request_id
        request = self._names.get(message.transfer, "")
        return type(message).__name__, request, message.transfer


def _used(buffer: ucx.Buffer, target: str) -> int:
    """Bytes of a buffer that say something: control messages fill their slot in part."""
    return buffer.nbytes if target == DATA else int(buffer[:2].view("<u2")[0]) + HEAD_BYTES

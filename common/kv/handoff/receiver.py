"""D's end of one handoff: grants slots, counts what is verified, retries the rest.

Theory of operation: as in `protocol.py`. After a lost connection D waits 50 ms * 2^i with full
jitter before it connects again, as long as it can connect to P at all. A damaged message is fetched
again once, at once. Everything ends at the deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.config import KvConfig
from common.errors import Code
from common.kv.checksum.header import HEADER_BYTES, NOT_YET, Arrival, Encoding, Verdict
from common.kv.handoff.protocol import (
    RECEIVE_TERMINAL,
    RECEIVE_TRANSITIONS,
    Action,
    Arrived,
    Cancel,
    Connect,
    Connected,
    ConnectFailed,
    Ended,
    PeerLost,
    Post,
    Posted,
    ReceiveEvent,
    ReceiveState,
    SendControl,
    Start,
    Tick,
)
from common.kv.messages import (
    PULL_HASH_BYTES,
    PULL_HASHES_MAX,
    KvAbort,
    KvCredit,
    KvPull,
    KvReady,
    KvRefused,
    KvReleased,
)
from common.kv.plan import (
    FP8,
    Chunking,
    KvShape,
    TransferChunking,
    TransferPlan,
    default_layer_groups,
    transfer_chunking,
)
from common.messages import KvReport, Ticket
from common.transitions import checked

RETRY_MS = 50.0
REFETCHES = 1
GRANTS_PER_WINDOW = 2
RECONNECTS = 2
"""After so many failed or lost connections, the next one that fails ends the handoff."""


@dataclass(frozen=True, slots=True)
class FetchSpec:
    """What D lacks of a prompt, and how to fetch it."""

    first_block: int
    blocks: int
    shape: KvShape
    """Uncompressed if D does not accept compression."""
    chunking: TransferChunking
    deadline: float
    """An instant."""
    retries: int
    """Retries that lost connections may cost."""
    layer_groups: int = 1
    hashes: bytes = b""
    """For a pull, the engine's hashes of blocks [0, first_block + blocks), `PULL_HASH_BYTES` each;
    empty for a handoff."""


def handoff_spec(
    config: KvConfig, shape: KvShape, run: range, now: float, *, on_card: bool = False
) -> FetchSpec:
    """These blocks of a prompt, in this shape."""
    blocks, direct_bytes = len(run), config.direct_message_bytes if on_card else 0
    groups = config.layer_groups or default_layer_groups(shape, blocks, on_card=on_card)
    return FetchSpec(
        first_block=run.start,
        blocks=blocks,
        shape=shape,
        chunking=transfer_chunking(config.message_bytes, shape, groups, blocks, direct_bytes),
        deadline=now + config.load_timeout_ms / 1000,
        retries=config.retries,
        layer_groups=groups,
    )


class Receiver:
    """D's end of one ticket."""

    def __init__(self, ticket: Ticket, spec: FetchSpec, uniform: Callable[[], float]) -> None:
        """`uniform` draws from [0, 1)."""
        self.ticket = ticket
        self.spec = spec
        self.state = ReceiveState.CONNECTING
        #: In BACKOFF, the instant at which to connect again.
        self.retry_at = 0.0
        self._uniform = uniform
        self._peer: int | None = None
        #: The current transfer; None unless WAITING or RECEIVING.
        self._plan: TransferPlan | None = None
        self._chunking: Chunking = spec.chunking.wire
        #: Peer and transfer of the last `KvReady` sent, until that connection is lost.
        self._announced: tuple[int, int] | None = None
        #: Slots [0, _asked) were asked of the shell with `Post`.
        self._asked = 0
        #: Slots [0, _granted) were granted to P.
        self._granted = 0
        #: Indices of the current transfer's messages.
        self._verified: set[int] = set()
        #: All blocks before this one are verified.
        self._next_block = spec.first_block
        self._lost = 0
        self._refetched = 0
        self._damaged = 0
        self._asked_at: float | None = None
        self._first_at: float | None = None
        self._last_at = 0.0
        self._messages = 0
        self._payload_bytes = 0
        self._raw_bytes = 0
        self._compression = ""
        self._early_bytes = 0

    @property
    def transfer(self) -> int | None:
        return self._plan.transfer if self._plan else None

    @property
    def window(self) -> int:
        """The number of slots that may be open."""
        return self._chunking.window

    @property
    def retries(self) -> int:
        return self._lost + self._refetched

    def lacks(self, transfer: int, index: int) -> bool:
        """Whether this message of this transfer is wanted and not verified, so that its blocks may
        be written. Nobody reads them before this handoff is done."""
        plan = self._plan
        wanted = plan is not None and plan.transfer == transfer and index < plan.messages
        return wanted and index not in self._verified

    @property
    def wake_at(self) -> float:
        """The instant at which a Tick is due."""
        return self.retry_at if self.state is ReceiveState.BACKOFF else self.spec.deadline

    def report(self) -> KvReport:
        asked, first = self._asked_at, self._first_at
        return KvReport(
            blocks=self._next_block - self.spec.first_block,
            complete=self.state is ReceiveState.DONE,
            messages=self._messages,
            payload_bytes=self._payload_bytes,
            wire_bytes=self._payload_bytes + HEADER_BYTES * self._messages,
            early_bytes=min(self._early_bytes, self._payload_bytes),
            wait_ms=(first - asked) * 1000 if first is not None and asked is not None else 0.0,
            transfer_ms=(self._last_at - first) * 1000 if first is not None else 0.0,
            retries=self.retries,
            refetches=self._refetched,
            digest_mismatches=self._damaged,
            compression=self._compression,
            raw_bytes=self._raw_bytes,
            canonical=self.ticket.canonical,
            element=self.ticket.element,
        )

    def handle(self, event: ReceiveEvent, now: float) -> list[Action]:  # noqa: C901, PLR0911
        """Raises IllegalTransitionError on a defect. An ended receiver ignores everything."""
        if self.state in RECEIVE_TERMINAL:
            return []
        match event:
            case Start():
                return [Connect()]
            case Connected() if self.state is ReceiveState.CONNECTING:
                return self._begin(event, now)
            case ConnectFailed(message, final) if self.state is ReceiveState.CONNECTING:
                return self._not_connected(message, now, final=final)
            case Posted(transfer, upto) if transfer == self.transfer:
                return self._grant(upto, now)
            case Arrived(transfer, arrival) if transfer == self.transfer:
                return self._arrived(arrival, now)
            case KvRefused() if event.transfer == self.transfer:
                sentence = f"{self.ticket.prefill} refused the KV: {event.message}"
                return self._fail(sentence, held=event.held)
            case PeerLost(peer) if peer == self._peer and self._plan is not None:
                return self._back_off(f"connection to {self.ticket.prefill} lost", now)
            case Cancel(reason):
                return self._end(ReceiveState.ABORTED, Code.CANCELLED, reason)
            case Tick() if now >= self.spec.deadline:
                sentence = f"no KV from {self.ticket.prefill} within the load timeout"
                return self._fail(sentence, trouble="transfer" if self._lost else "")
            case Tick() if self.state is ReceiveState.BACKOFF and now >= self.retry_at:
                self._become(ReceiveState.CONNECTING)
                return [Connect()]
        return []

    def _not_connected(self, message: str, now: float, *, final: bool) -> list[Action]:
        """Few retries only: each costs the whole time limit of a connection."""
        if final:
            return self._fail(message)
        if self._lost >= RECONNECTS:
            return self._fail(message, trouble="transfer")
        return self._back_off(message, now)

    def _begin(self, connected: Connected, now: float) -> list[Action]:
        spec, peer = self.spec, connected.peer
        chunking, shape = spec.chunking, spec.shape
        self._chunking = chunking.loan if connected.loan else chunking.wire
        if connected.direct:
            self._chunking, shape = chunking.direct, shape.uncompressed()
        left = spec.first_block + spec.blocks - self._next_block
        plan = TransferPlan(
            connected.transfer,
            self._next_block,
            left,
            self._chunking.message_blocks,
            shape,
            spec.layer_groups,
            connected.direct,
        )
        self._peer, self._plan = peer, plan
        self._asked = self._granted = 0
        self._verified = set()
        self._become(ReceiveState.WAITING)
        if plan.blocks == 0:
            ready = self._ready(plan, 0, now)
            self._plan = None
            return [SendControl(peer, ready), *self._end(ReceiveState.DONE, "", "")]
        return self._post()

    def _post(self) -> list[Action]:
        """Keeps up to `window` slots open, and grants several at a time, because a grant costs both
        sides more than the digest of a message."""
        plan, peer = self._plan, self._peer
        assert plan is not None and peer is not None  # noqa: PT018
        upto = min(plan.messages, len(self._verified) + self.window)
        few = max(1, self.window // GRANTS_PER_WINDOW)
        if upto - self._asked < (few if upto < plan.messages else 1):
            return []
        first, self._asked = self._asked, upto
        return [Post(peer, plan, first, upto, due=first == len(self._verified))]

    def _grant(self, upto: int, now: float) -> list[Action]:
        plan, peer = self._plan, self._peer
        assert plan is not None and peer is not None  # noqa: PT018
        granted, self._granted, self._asked = self._granted, upto, upto
        if upto == granted:
            return []
        if self._announced == (peer, plan.transfer):
            return [SendControl(peer, KvCredit(transfer=plan.transfer, granted=upto))]
        self._announced = (peer, plan.transfer)
        if self._asked_at is None:
            self._asked_at = now
        return [*self._pull(peer, plan), SendControl(peer, self._ready(plan, upto, now))]

    def _pull(self, peer: int, plan: TransferPlan) -> list[Action]:
        """What stands for the ticket of a pull."""
        hashes, step = self.spec.hashes, PULL_HASHES_MAX * PULL_HASH_BYTES
        return [
            SendControl(
                peer,
                KvPull(
                    secret=self.ticket.secret,
                    request_id=self.ticket.request_id,
                    attempt=self.ticket.attempt,
                    transfer=plan.transfer,
                    total=len(hashes) // PULL_HASH_BYTES,
                    hashes=hashes[at : at + step],
                ),
            )
            for at in range(0, len(hashes), step)
        ]

    def _ready(self, plan: TransferPlan, granted: int, now: float) -> KvReady:
        return KvReady(
            secret=self.ticket.secret,
            request_id=self.ticket.request_id,
            attempt=self.ticket.attempt,
            transfer=plan.transfer,
            first_block=plan.first_block,
            blocks=plan.blocks,
            message_blocks=plan.message_blocks,
            granted=granted,
            layer_groups=plan.layer_groups,
            patience_ms=max(0.0, self.spec.deadline - now) * 1000,
            accepts=(FP8,) if plan.shape.fp8_page_bytes else (),
            direct=plan.direct,
        )

    def _arrived(self, arrival: Arrival, now: float) -> list[Action]:
        match arrival.verdict:
            case Verdict.LOST:
                return self._back_off("a receive failed in the transport", now)
            case Verdict.VOID:
                return self._fail(f"{self.ticket.prefill} gave the transfer up")
            case Verdict.CORRUPT:
                return self._refetch()
            case Verdict.OK:
                return self._verify(arrival, now)

    def _verify(self, arrival: Arrival, now: float) -> list[Action]:
        plan, peer = self._plan, self._peer
        assert plan is not None and peer is not None  # noqa: PT018
        if arrival.index in self._verified:
            return []
        if self.state is ReceiveState.WAITING:
            self._become(ReceiveState.RECEIVING)
        message = raw = plan.message(arrival.index)
        if arrival.encoding is Encoding.FP8:
            message, self._compression = raw.compressed(), FP8
        self._verified.add(arrival.index)
        self._first_at = now if self._first_at is None else self._first_at
        self._last_at = now
        self._messages += 1
        self._payload_bytes += message.payload_bytes
        self._raw_bytes += raw.payload_bytes
        if arrival.early_bytes != NOT_YET:
            self._early_bytes = arrival.early_bytes
        self._advance(plan)
        if len(self._verified) < plan.messages:
            return self._post()
        released = SendControl(peer, KvReleased(transfer=plan.transfer))
        self._plan = None
        return [*self._end(ReceiveState.DONE, "", ""), released]

    def _advance(self, plan: TransferPlan) -> None:
        """Moves `_next_block` past the runs that are verified, all layers, without a gap."""
        groups = plan.groups
        while self._next_block < plan.end:
            run = (self._next_block - plan.first_block) // plan.message_blocks
            if not all(run * groups + group in self._verified for group in range(groups)):
                return
            self._next_block = plan.message(run * groups).end_block

    def _refetch(self) -> list[Action]:
        self._damaged += 1
        if self._refetched >= REFETCHES:
            sentence = f"KV from {self.ticket.prefill} was damaged again after a refetch"
            return self._fail(sentence, trouble="digest")
        self._refetched += 1
        self._plan = None
        self._become(ReceiveState.CONNECTING)
        return [Connect()]

    def _back_off(self, message: str, now: float) -> list[Action]:
        self._plan = self._peer = self._announced = None
        if self._lost >= self.spec.retries:
            return self._fail(message, trouble="transfer")
        self.retry_at = now + RETRY_MS * (1 << self._lost) * self._uniform() / 1000
        self._lost += 1
        self._become(ReceiveState.BACKOFF)
        return []

    def _fail(self, message: str, trouble: str = "", held: int = 0) -> list[Action]:
        return self._end(ReceiveState.FAILED, Code.KV_TRANSFER_FAILED, message, trouble, held)

    def _end(
        self, state: ReceiveState, error: str, message: str, trouble: str = "", held: int = 0
    ) -> list[Action]:
        announced, self._announced, self._plan = self._announced, None, None
        self._become(state)
        ended = Ended(error, message, trouble, held)
        if announced is None or state is ReceiveState.DONE:
            return [ended]
        peer, transfer = announced
        return [SendControl(peer, KvAbort(transfer=transfer, reason=message)), ended]

    def _become(self, state: ReceiveState) -> None:
        self.state = checked("receiver", RECEIVE_TRANSITIONS, self.state, state)

    def check_invariants(self) -> None:
        active = self.state in (ReceiveState.WAITING, ReceiveState.RECEIVING)
        if active != (self._plan is not None):
            raise AssertionError(f"{self.state} with transfer {self.transfer}")
        end = self.spec.first_block + self.spec.blocks
        if not self.spec.first_block <= self._next_block <= end:
            raise AssertionError(f"next block {self._next_block} outside {self.spec}")
        if self.state is ReceiveState.DONE and self._next_block != end:
            raise AssertionError("done, but not every wanted block was verified")

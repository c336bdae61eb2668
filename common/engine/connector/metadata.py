"""What the connector's two halves exchange, and how a request carries its ticket.

A request has `kv_transfer_params = {"baton": {"side": "send"|"receive", "ticket": hex, "tokens":
int, "goes_on": bool}}`, with the ticket as MessagePack in hex, because vLLM sends these parameters
through several encoders. `baton_source` beside it names another worker's store, and `baton_holder`
a worker whose store gets copies, in the same form. vLLM passes a metadata object from the scheduler
half to the worker half once per step, in process or by its own serializer; the object holds plain
values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from common.engine.port import KEY_SEPARATOR, engine_key
from common.identity import AttemptKey
from common.kv.store.record import Spill
from common.kv.store.table import BlockCopy, BlockName, StoreCounts
from common.messages import KvHolder, KvSource, Ticket

PARAMS_KEY = "baton"
SOURCE_KEY = "baton_source"
HOLDER_KEY = "baton_holder"
AHEAD = "ahead"
"""In the place of a request's id, for blocks that no request has asked for yet. vLLM's ids have
`KEY_SEPARATOR` in them."""
Side = Literal["send", "receive"]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Ticket)
_source_decoder = msgspec.msgpack.Decoder(KvSource)
_holder_decoder = msgspec.msgpack.Decoder(KvHolder)


class KvTask(msgspec.Struct, frozen=True):
    """The part of one engine request in a handoff."""

    side: Side
    ticket: Ticket
    #: Of the prompt, how many are handed over: all but the last, which D computes for its logits.
    tokens: int
    #: Whether it is a stream that ran elsewhere before.
    goes_on: bool = False

    @property
    def key(self) -> AttemptKey:
        return (self.ticket.request_id, self.ticket.attempt)


def to_params(side: Side, ticket: Ticket, tokens: int, *, goes_on: bool = False) -> dict[str, Any]:
    """The value of `SamplingParams.extra_args["kv_transfer_params"]`."""
    packed = _encoder.encode(ticket).hex()
    return {PARAMS_KEY: {"side": side, "ticket": packed, "tokens": tokens, "goes_on": goes_on}}


def from_params(params: Mapping[str, Any] | None) -> KvTask | None:
    """None if the request takes part in no handoff. Raises msgspec.DecodeError, ValueError or
    KeyError."""
    own = (params or {}).get(PARAMS_KEY)
    if own is None:
        return None
    ticket = _decoder.decode(bytes.fromhex(own["ticket"]))
    return KvTask(own["side"], ticket, own["tokens"], own["goes_on"])


def source_params(source: KvSource) -> dict[str, Any]:
    """What `kv_transfer_params` have for a source."""
    return {SOURCE_KEY: _encoder.encode(source).hex()}


def source_of(params: Mapping[str, Any] | None) -> KvSource | None:
    """None if the router named none. Raises msgspec.DecodeError or ValueError."""
    packed = (params or {}).get(SOURCE_KEY)
    return _source_decoder.decode(bytes.fromhex(packed)) if packed else None


def holder_params(holder: KvHolder) -> dict[str, Any]:
    """What `kv_transfer_params` have for a holder of copies."""
    return {HOLDER_KEY: _encoder.encode(holder).hex()}


def holder_of(params: Mapping[str, Any] | None) -> KvHolder | None:
    """None if the router named none. Raises msgspec.DecodeError or ValueError."""
    packed = (params or {}).get(HOLDER_KEY)
    return _holder_decoder.decode(bytes.fromhex(packed)) if packed else None


def request_key(key: AttemptKey) -> str:
    """vLLM's id of the request with this key."""
    return engine_key(*key)


def attempt_key(request_id: str) -> AttemptKey:
    """The reverse of `request_key`."""
    name, _, attempt = request_id.rpartition(KEY_SEPARATOR)
    return name, int(attempt)


@dataclass(frozen=True)
class Progress:
    """On P, how far a prompt is computed after this step."""

    key: AttemptKey
    #: The blocks that hold KV after this step, in handover order (`common.blocks.HandoverOrder`).
    block_ids: list[int]
    #: How many blocks the whole handoff has.
    handoff_blocks: int
    #: The ticket, in the first step of the request.
    offer: Ticket | None = None


@dataclass(frozen=True)
class Fetch:
    """On D, a part of a prompt to fetch."""

    ticket: Ticket
    #: Number of the first block to fetch, in handover order.
    first_block: int
    #: Where the blocks go. Empty if nothing is missing; P must be told that.
    block_ids: list[int]


@dataclass(frozen=True)
class StoreLoad:
    """Blocks of a prompt that come out of the store."""

    #: vLLM's id of the request, or `AHEAD`.
    request_id: str
    copies: list[BlockCopy]


@dataclass(frozen=True)
class StorePull:
    """Blocks of a prompt that come out of another worker's store."""

    #: vLLM's id of the request.
    request_id: str
    source: KvSource
    #: The engine's own, joined.
    hashes: bytes
    #: Where the blocks go.
    block_ids: list[int]
    #: Whether it is the second one of the request, for what the source said that it has.
    again: bool = False


@dataclass(frozen=True)
class StoreOffer:
    """Blocks of a running stream that another holder is to have, too."""

    key: AttemptKey
    holder: KvHolder
    #: The engine's own, joined.
    hashes: bytes
    #: By which routers know them; empty if they have none.
    names: bytes
    #: How many blocks of the stream have filled.
    filled: int
    #: As in `KvOffer`.
    owner: bytes = b""


@dataclass
class StorePlan:
    """What the store does in one step, on every rank alike."""

    #: Blocks that the step overwrites, and whose save may not have begun.
    withdrawn: list[int] = field(default_factory=list)
    #: Blocks that hold KV after the step.
    saves: list[BlockCopy] = field(default_factory=list)
    loads: list[StoreLoad] = field(default_factory=list)
    #: Blocks that go from memory to the disk.
    spills: list[Spill] = field(default_factory=list)
    #: Slots of the disk whose blocks were used.
    used: list[int] = field(default_factory=list)
    counts: StoreCounts = field(default_factory=StoreCounts)
    disk_counts: StoreCounts = field(default_factory=StoreCounts)
    pulls: list[StorePull] = field(default_factory=list)
    offers: list[StoreOffer] = field(default_factory=list)
    #: Streams that are over, of which nothing more is offered.
    ended_offers: list[AttemptKey] = field(default_factory=list)
    #: Slots of the disk whose blocks the next process is not to find.
    dropped: list[int] = field(default_factory=list)
    #: As `DiskStore.changes`, for the daemon.
    told: dict[BlockName, bytes | None] = field(default_factory=dict)


@dataclass
class StepPlan:
    """What the worker half does in one step."""

    #: Whether the step computes nothing and vLLM only polls.
    idle: bool = False
    #: On P, prompts that this step computes.
    progress: list[Progress] = field(default_factory=list)
    #: On D, handoffs that begin.
    fetches: list[Fetch] = field(default_factory=list)
    #: Handoffs that were aborted, with the reason.
    releases: list[tuple[AttemptKey, str]] = field(default_factory=list)
    #: On D, streams that were aborted, and the blocks that hold the KV of all their tokens but the
    #: last; none where some of it is not there.
    kept: list[tuple[AttemptKey, list[int]]] = field(default_factory=list)
    #: On P, prompts whose blocks were preempted.
    withdrawn: list[AttemptKey] = field(default_factory=list)
    #: None without a store.
    store: StorePlan | None = None

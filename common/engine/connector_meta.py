"""What the connector's two halves tell each other, and what a request says to the connector.

A request carries `kv_transfer_params = {"baton": {"side": "send"|"receive", "ticket": hex}}`, the
ticket as MessagePack in hex, because vLLM sends these parameters through several encoders. vLLM's
metadata object goes from the scheduler half to the worker half once per step, in process or by
vLLM's own serializer; it holds plain values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from common.engine.port import engine_key
from common.kv.handoff.desk import Key
from common.messages import Ticket

PARAMS_KEY = "baton"
Side = Literal["send", "receive"]

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Ticket)


class KvTask(msgspec.Struct, frozen=True):
    """What one engine request has to do with KV of another worker."""

    side: Side
    ticket: Ticket

    @property
    def key(self) -> Key:
        return (self.ticket.request_id, self.ticket.attempt)


def to_params(side: Side, ticket: Ticket) -> dict[str, Any]:
    """For `SamplingParams.extra_args["kv_transfer_params"]`."""
    return {PARAMS_KEY: {"side": side, "ticket": _encoder.encode(ticket).hex()}}


def from_params(params: Mapping[str, Any] | None) -> KvTask | None:
    """None when the request has no KV task. Raises msgspec.DecodeError, ValueError, KeyError."""
    own = (params or {}).get(PARAMS_KEY)
    if own is None:
        return None
    return KvTask(own["side"], _decoder.decode(bytes.fromhex(own["ticket"])))


def request_key(key: Key) -> str:
    """vLLM's id of the request with this key."""
    return engine_key(*key)


@dataclass(frozen=True)
class Progress:
    """P: where a prompt's blocks are and how many of them hold KV after this step."""

    key: Key
    block_ids: list[int]
    computed: int
    offer: Ticket | None = None
    prompt_blocks: int = 0


@dataclass(frozen=True)
class Fetch:
    """D: fetch blocks [first_block, ...) of the ticket's prompt. No block ids: nothing is lacking,
    and P shall be told so."""

    ticket: Ticket
    first_block: int
    block_ids: list[int]


@dataclass
class StepPlan:
    """One step's news for the worker half. `idle`: the step computes nothing, vLLM only polls."""

    idle: bool = False

    progress: list[Progress] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    releases: list[tuple[Key, str]] = field(default_factory=list)
    withdrawn: list[Key] = field(default_factory=list)

"""What messages about workers and the fleet are made of; see the package for the rules.

Requests are in `request.py`, KV transfers in `kv_reports.py`.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from common.blocks import KV_GROUPS_MAX, KvGroup

#: Adapters of one worker, and what one says of itself.
ADAPTERS_MAX = 128
ADAPTER_CHARS_MAX = 128
ADAPTER_PATH_CHARS_MAX = 1_024
ADAPTER_ERROR_CHARS_MAX = 512
#: Workers that an order for more of them names, and orders that a gateway keeps: one a model.
SCALE_NAMES_MAX = 512
SCALE_ORDERS_MAX = 256

Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
"""The numbers that a router calculates with. They are neither infinite nor NaN, and no integer is
too large for a float. A frame with another value is refused where it is decoded."""


class Role(enum.StrEnum):
    """What a daemon is."""

    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    #: A worker whose work is that of a prefill and of a decode worker, over one engine.
    MIXED = "mixed"
    POOL = "pool"
    HEALTH = "health"

    @property
    def parts(self) -> tuple[Role, ...]:
        """The roles whose work it does."""
        return (Role.PREFILL, Role.DECODE) if self is Role.MIXED else (self,)

    @property
    def prefills(self) -> bool:
        """Whether it computes prompts for decode workers."""
        return self in (Role.PREFILL, Role.MIXED)

    @property
    def decodes(self) -> bool:
        """Whether it has streams."""
        return self in (Role.DECODE, Role.MIXED)


class FinishReason(enum.StrEnum):
    """Why D ended a stream by itself. Stop strings are matched by the gateway, which aborts the
    attempt on D and reports `stop` to the client."""

    STOP = "stop"
    LENGTH = "length"


class PriorityClass(enum.IntEnum):
    """The queue in which a request waits. A lower number is served first; the API key bounds which
    class a request may ask for."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all tagged messages. The tag is in the key `type`. It is the class name, or the name
    that the class had when it first went over the wire."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's engine can hold. It is fixed for an incarnation."""

    #: Tokens of one KV block.
    block_tokens: Count
    #: KV blocks of the engine.
    kv_blocks: Count
    #: Bytes of one KV block over all layers of a KV cache group.
    kv_block_bytes: Count
    #: The KV cache groups, which share the blocks; empty = one that keeps the KV of all tokens.
    kv_groups: Annotated[tuple[KvGroup, ...], Meta(max_length=KV_GROUPS_MAX)] = ()
    #: Whether the engine keeps the KV of earlier prompts.
    keeps_prefixes: bool = True
    #: Blocks that the store holds which other workers may pull from it; 0: none. With any, it may
    #: pull from others, too.
    pull_blocks: Count = 0
    #: Tokens of a prompt and its output together.
    max_model_len: Count
    #: Sequences in one batch.
    max_num_seqs: Count
    #: Whether the engine continues a request that another worker began with the same sampling state
    #: (`common.resume`).
    restores: bool = False
    #: Layers into which a KV block is cut on the wire; 0: it is not told, and pools cannot hold
    #: the blocks.
    kv_layers: Count = 0
    #: Blocks that the disk below the store holds, which others may pull, too; 0: none.
    disk_blocks: Count = 0
    #: What the KV means, however it lies in memory: workers for which it is equal may hand prompts
    #: over in the canonical form (`Ticket.canonical`). Empty: this KV has no such form.
    kv_meaning: str = ""
    #: Bytes of a block in that form, which has no layers of a drafter; 0: it is not told.
    kv_canonical_bytes: Count = 0
    #: The same, the precision of KV left out: workers for which it is equal may hand prompts over
    #: with a conversion (`Ticket.element`). Empty: this worker's KV is not to be converted.
    kv_lossy_meaning: str = ""
    #: The element type of its KV, where it says what it means.
    kv_element: str = ""

    @property
    def kv_form(self) -> tuple[str, str, str]:
        """What it means, the same but for precision, and its element type."""
        return self.kv_meaning, self.kv_lossy_meaning, self.kv_element

    def requests_max(self, slots_ahead_max: float) -> int:
        """Requests that a decode worker may have, those included whose prompts are computed before
        a slot is free. `slots_ahead_max`: as in `[router]`."""
        return self.max_num_seqs + int(self.max_num_seqs * slots_ahead_max)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's engine holds now."""

    #: Sequences in its batch.
    running: Count = 0
    #: Sequences that wait in it.
    waiting: Count = 0
    #: Share of its KV blocks in use, 0 to 1.
    kv_used: Number = 0.0
    #: Milliseconds since its last step while it has work; 0 when idle. If its work is taken away,
    #: the time runs on until the engine shows that it is alive.
    step_age_ms: Number = 0.0
    #: The p99 of its latest steps in milliseconds; 0 while too few were made.
    step_ms_p99: Number = 0.0
    #: Milliseconds for which it has not answered a probe; 0 when it answered.
    silent_ms: Number = 0.0


class PhaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker computed in the last 10 s."""

    #: Prompt tokens that it computed, and tokens that it generated, per second.
    prefill_tokens_per_s: Number = 0.0
    decode_tokens_per_s: Number = 0.0
    #: Sequences in a step that generated, in the mean; 0 if none did.
    batch: Number = 0.0
    #: Prompts whose KV is on its way to it, and those whose KV others have not taken from it.
    handoffs: Count = 0
    #: Share of the time in which its GPUs computed, and in which their memory was read or written,
    #: 0 to 1; -1 where nothing can tell.
    gpu_busy: Number = -1.0
    gpu_memory_busy: Number = -1.0
    #: Share of the drafted tokens that the model accepted, 0 to 1; -1 where none were drafted.
    accepted: Number = -1.0
    #: Tokens that a sequence got in one step, in the mean; 0 if none did.
    tokens_per_output: Number = 0.0


class KvUnreachable(msgspec.Struct, frozen=True, kw_only=True):
    """D: a prefill worker to which no connection can be made, though it is tried again and
    again."""

    #: Name of the prefill worker.
    prefill: str
    #: Its UCX listener, `host:port`.
    kv_address: str
    #: Milliseconds for which no connection was established.
    for_ms: Number


class WarmState(msgspec.Struct, frozen=True, kw_only=True):
    """Of a worker that sleeps while it is not needed."""

    #: Whether it sleeps: its model is loaded, it has no KV, and it gets nothing.
    asleep: bool
    #: Milliseconds that it took to wake last; 0 if it never did.
    wake_ms: Number = 0.0


class HealthVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that the health daemon of a worker's host found in the worker."""

    #: The fault, as one sentence.
    reason: str
    #: Whether the worker should get nothing new; otherwise it gets what no other worker can take.
    down: bool = False


class AdapterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter as a worker has it."""

    #: `NAME@DIGEST` (`common.model.adapters`); the name alone if it cannot be served.
    id: Annotated[str, Meta(max_length=ADAPTER_CHARS_MAX)]
    #: Folder of its files.
    path: Annotated[str, Meta(max_length=ADAPTER_PATH_CHARS_MAX)] = ""
    #: Whether the engine has it in memory now; otherwise the next request loads it.
    resident: bool = False
    #: Milliseconds that it took to load last; 0 while it was not loaded.
    load_ms: Number = 0.0
    #: Why it cannot be served; empty if it can.
    error: Annotated[str, Meta(max_length=ADAPTER_ERROR_CHARS_MAX)] = ""


class HeldAttempt(msgspec.Struct, frozen=True, array_like=True):
    """One attempt as a worker holds it. Peers are given by identity, `name|incarnation`."""

    request_id: str
    attempt: Count
    prompt_tokens: Count
    max_tokens: Count
    #: The decode worker.
    decode: str
    #: The prefill worker; empty if none takes part.
    prefill: str = ""
    #: The gateway; empty in the report of a prefill worker.
    gateway: str = ""
    #: On D, whether its first token was made; on P, whether the prompt was computed.
    started: bool = False
    #: The worker whose store gets copies of its blocks; empty if none does.
    holder: str = ""
    #: On D, tokens of prompt and answer whose KV it is promised; 0: all.
    kv_tokens: Count = 0


class Leg(msgspec.Struct, frozen=True, array_like=True):
    """One phase of a request, as its gateway measured it."""

    #: `intake` (headers complete until submitted), `held` (no router answered), `queue`, `placed`
    #: (until the first token), `decode`, or `recovery` (from the last token of a lost worker until
    #: submitted again).
    name: str
    attempt: int
    #: Duration in milliseconds.
    ms: float


class ScaleOrder(msgspec.Struct, frozen=True, kw_only=True):
    """That workers of a model are to be started, or one is to be stopped. Gateways keep it for the
    router that orders it, or for its successor."""

    #: Chosen by the router, new for each order.
    id: str
    #: Name of the model.
    model: str
    role: Role
    #: Whether workers are to be started; otherwise one is to be stopped.
    out: bool
    #: How many.
    count: Count
    #: The reason, as one sentence.
    why: str
    #: Milliseconds since it was given, and until it has failed.
    age_ms: Number
    remaining_ms: Number
    #: Whether the hook has been called, or may have been.
    asked: bool
    #: Name of the worker that is to be stopped, else empty.
    worker: str = ""
    #: Names of the workers of the role that were here when it was given, the first 512.
    names: Annotated[tuple[str, ...], Meta(max_length=SCALE_NAMES_MAX)] = ()

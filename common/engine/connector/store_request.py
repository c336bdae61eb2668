"""What the scheduler half's part in the store knows of one request, and of one filled block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from common.engine.connector.block_names import BlockNames
from common.kv.store.table import BlockName, Medium
from common.messages import KvSource

if TYPE_CHECKING:
    from vllm.v1.request import Request

Place = tuple[Medium, int]
"""A tier, and a slot in it."""


class Filled(NamedTuple):
    """A block that holds its final KV."""

    name: BlockName
    owner: bytes
    #: As in `Record`.
    ours: bytes = b""


@dataclass(slots=True)
class StoreRequest:
    """A request of the engine."""

    request: Request
    #: Whose blocks they are.
    owner: bytes
    #: By which routers know its blocks; those on a disk keep them.
    names: BlockNames
    #: Its blocks, as far as plans tell of them.
    block_ids: list[int] = field(default_factory=list)
    #: Tokens whose KV exists after the steps planned so far.
    computed: int = 0
    #: Leading blocks that need not be stored any more; None until they are known.
    settled: int | None = None
    #: Where the store has its next blocks, since it was asked last.
    found: list[Place] = field(default_factory=list)
    #: Whether a load of it has failed.
    failed: bool = False
    #: Whether what is loaded is a part of a handoff, which may fail alone.
    in_part: bool = False
    #: The worker whose store has its beginning, until a pull from it has failed.
    source: KvSource | None = None
    #: How many blocks would be pulled, since it was asked last.
    wanted: int = 0
    #: Whether the source had fewer blocks than were wanted, and is asked for those.
    shortened: bool = False

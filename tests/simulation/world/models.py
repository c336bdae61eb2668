"""The models that worlds serve: what their engines keep, and how much of it a sequence has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import msgspec

from common.blocks import Kept, KvGroup, blocks_for
from common.engine.port import EngineRequest
from common.messages import Capacity
from tests.rigs.messages import capacity

BLOCK = 4
SEQS = 5
CONTEXT = 120
GRANT = 0.95
#: Blocks of a worker's store, where engines can have one.
STORED = 64
#: Tokens that an engine computes in one step of a prompt.
STEP = 8

FULL = KvGroup(BLOCK)
WINDOW = KvGroup(BLOCK, Kept.WINDOW, reach=10, in_flight=STEP)
CHUNK = KvGroup(2 * BLOCK, Kept.CHUNK, reach=24, in_flight=STEP)
STATE = KvGroup(CONTEXT, Kept.STATE)


def _model(blocks: int, *groups: KvGroup) -> Capacity:
    return capacity(
        block_tokens=BLOCK,
        blocks=blocks,
        block_bytes=64,
        max_model_len=CONTEXT,
        seqs=SEQS,
        groups=groups,
    )


#: Each pool holds the longest request, but not as many as there are slots.
MODELS = {
    "full": msgspec.structs.replace(_model(40), pull_blocks=STORED),
    "full, window": _model(46, FULL, WINDOW),
    "full, windows, state": _model(52, FULL, WINDOW, WINDOW, STATE),
    "full, chunk": _model(44, FULL, CHUNK),
    "windows": _model(24, WINDOW, WINDOW),
    "states": _model(9, STATE, STATE),
}
ODDS = (5, 2, 2, 1, 1, 1)


@cache
def blocks_held(groups: tuple[KvGroup, ...], tokens: int, step: int = 1) -> int:
    """The blocks that a sequence needs at most, in each group, while so many tokens are computed,
    `step` at a time. It is counted step by step, and not as the router counts."""
    return sum(
        max(
            blocks_for(min(before + step, tokens), group.block_tokens) - group.blocks(before).start
            for before in range(tokens)
        )
        for group in groups
    )


@dataclass(slots=True)
class Held:
    """One attempt in an engine. `blocks`: that it needs at most, over all groups. `entered`: it has
    a slot. `taker`: called once when P has computed it, or will not."""

    request: EngineRequest
    blocks: int
    computed: bool = False
    expired: bool = False
    entered: bool = False
    running: bool = False
    emitted: int = 0
    taker: Callable[[bool], None] | None = None

    @property
    def tokens(self) -> int:
        """Of its prompt and its answer so far."""
        return len(self.request.prompt_ids) + self.emitted

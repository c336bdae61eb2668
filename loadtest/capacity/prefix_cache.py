"""A modelled worker's prefix cache.

Theory of operation: an engine keeps the KV of a prompt's whole blocks after the request has ended
and computes of a later prompt only what comes behind the leading blocks that it still has; a block
behind a gap is of no use. What was used longest ago goes first, and of one prompt the tail before
the head, as vLLM frees them. A prompt's blocks are there from the step on that begins to compute
it, for no later prompt is computed before it. What is left out: streams take KV blocks from the
cache, so a real one is smaller the more of them run; and answers are not kept, since no load
specifies which later prompts contain them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Blocks by their hashes. `blocks_max` 0: an engine without such a cache."""

    def __init__(self, blocks_max: int) -> None:
        self._blocks_max = blocks_max
        self._held: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def match(self, blocks: Sequence[bytes]) -> int:
        """How many leading blocks of a prompt are held."""
        held = self._held
        return next((n for n, block in enumerate(blocks) if block not in held), len(blocks))

    def add(self, blocks: Sequence[bytes]) -> None:
        """A prompt's whole blocks, in its order; of one that is larger than the cache, the head."""
        held = self._held
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
        while len(held) > self._blocks_max:
            held.popitem(last=False)

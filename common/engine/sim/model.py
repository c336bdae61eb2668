"""KV content and tokens of the simulated model, as pure functions of the text so far.

Theory of operation: the KV of a block is a pattern seeded by a hash of all tokens up to the block's
end and of the adapter, so it depends on everything before it, as real KV does. The token at
position p depends on the tokens before p, the adapter, the seed, and the damage. The damage is the
difference between the KV in memory and the KV that the prompt implies; it is 0 when they are equal.
A handoff of the right bytes therefore continues the text exactly as a local prefill would, a
resumed text continues as if never interrupted, and one wrong byte changes the output.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.kv.layout import HostMemory
from common.messages import Pooling, Sampling

DIMENSIONS = 64
LETTERS = b"abcdefghijklmnopqrstuvwxyz     "


def not_modelled(sampling: Sampling) -> str:
    """The name of a parameter in use that the engine does not model; empty if there is none.
    Temperature, penalties and the like are ignored, because the text is not sampled from a
    distribution."""
    asked = {
        "logprobs": sampling.logprobs is not None,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "logprob_token_ids": sampling.logprob_token_ids is not None,
        "allowed_token_ids": sampling.allowed_token_ids is not None,
        "bad_words": bool(sampling.bad_words),
        "thinking_token_budget": sampling.thinking_token_budget is not None,
        "structured_outputs": sampling.structured is not None,
    }
    return next((name for name, is_asked in asked.items() if is_asked), "")


def pooled_numbers(prompt: Sequence[int], pooling: Pooling) -> bytes:
    """What the simulated model makes of a prompt: a unit vector, or one number of 0 to 1; all
    depend on every token."""
    count = (pooling.dimensions or DIMENSIONS) if pooling.task == "embed" else 1
    seed = xxhash.xxh3_64_intdigest(array("I", prompt).tobytes())
    numbers = np.random.Generator(np.random.PCG64(seed)).random(count, np.float32)
    if pooling.task == "embed":
        numbers /= np.linalg.norm(numbers)
    return numbers.astype("<f4").tobytes()


def block_seed(prompt: Sequence[int], end: int, adapter: str = "") -> int:
    """The seed of the block that ends before token `end`, computed with this adapter."""
    return xxhash.xxh3_64_intdigest(adapter.encode() + array("I", prompt[:end]).tobytes())


def block_content(seed: int, page_bytes: int, layer: int) -> NDArray[np.uint8]:
    """The content of one page, that is of one layer, of the block with this seed."""
    mixed = (seed * 0x9E3779B97F4A7C15 + layer + 1) & 0xFFFF_FFFF_FFFF_FFFF
    words = np.arange(-(-page_bytes // 8), dtype=np.uint64) ^ np.uint64(mixed)
    return words.view(np.uint8)[:page_bytes]


class SimKv:
    """The KV of prompts in paged memory."""

    def __init__(self, memory: HostMemory, block_tokens: int) -> None:
        self.memory = memory
        self._block_tokens = block_tokens

    def compute(
        self,
        prompt: Sequence[int],
        block_ids: Sequence[int],
        first: int,
        end: int,
        adapter: str = "",
    ) -> None:
        """Writes blocks [first, end) of the prompt."""
        geometry = self.memory.geometry
        for at in range(first, end):
            seed = block_seed(prompt, self._end(prompt, at), adapter)
            for layer in range(geometry.layers):
                page = self.memory.page(layer, block_ids[at])
                page[:] = block_content(seed, geometry.page_bytes, layer)

    def damage(self, prompt: Sequence[int], block_ids: Sequence[int], adapter: str = "") -> int:
        """0 if these first blocks of the prompt hold what it implies."""
        geometry = self.memory.geometry
        result = 0
        for at, block in enumerate(block_ids):
            seed = block_seed(prompt, self._end(prompt, at), adapter)
            for layer in range(geometry.layers):
                held = xxhash.xxh3_64_intdigest(self.memory.page(layer, block).tobytes())
                due = xxhash.xxh3_64_intdigest(block_content(seed, geometry.page_bytes, layer).data)
                result ^= held ^ due
        return result

    def _end(self, prompt: Sequence[int], block: int) -> int:
        return min(len(prompt), (block + 1) * self._block_tokens)


class SimText:
    """The generated tokens of one request, one by one, in constant time each."""

    def __init__(
        self, prompt: Sequence[int], seed: int | None, damage: int, adapter: str = ""
    ) -> None:
        self._hash = xxhash.xxh3_64(adapter.encode() + array("I", prompt).tobytes())
        self._salt = (0 if seed is None else seed) ^ damage

    def next_token(self) -> int:
        mixed = (self._hash.intdigest() ^ self._salt) * 0xBF58476D1CE4E5B9
        token = LETTERS[((mixed & 0xFFFF_FFFF_FFFF_FFFF) >> 32) % len(LETTERS)]
        self._hash.update(array("I", [token]).tobytes())
        return token

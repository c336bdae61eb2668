"""How one transfer is cut into messages: both sides compute it, neither is told.

A transfer moves blocks [first_block, first_block + blocks) of a prompt in messages of
`message_blocks` blocks, the last maybe shorter, all layers of a block in one message.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.kv.digest import INDEX_MAX, Expected


@dataclass(frozen=True, slots=True)
class Shape:
    """What a geometry contributes; equal on P and D because their fingerprints are."""

    layers: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Raises ValueError for what no honest peer asks."""

    transfer: int
    first_block: int
    blocks: int
    message_blocks: int
    shape: Shape

    def __post_init__(self) -> None:
        if self.first_block < 0 or self.blocks < 0 or self.message_blocks < 1:
            raise ValueError(f"impossible transfer: {self}")
        if self.messages > INDEX_MAX:
            raise ValueError(f"{self.messages} messages exceed {INDEX_MAX} in one transfer")

    @property
    def messages(self) -> int:
        return -(-self.blocks // self.message_blocks)

    @property
    def end(self) -> int:
        return self.first_block + self.blocks

    def message(self, index: int) -> Expected:
        if not 0 <= index < self.messages:
            raise ValueError(f"message {index} of {self.messages}")
        first = self.first_block + index * self.message_blocks
        count = min(self.message_blocks, self.end - first)
        payload = count * self.shape.block_bytes
        return Expected(self.transfer, index, first, count, self.shape.layers, payload)


def message_blocks(message_bytes: int, block_bytes: int) -> int:
    """As many whole blocks as fit; one, if even one is larger."""
    return max(1, message_bytes // block_bytes)

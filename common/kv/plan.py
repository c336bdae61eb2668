"""How one transfer is cut into messages: both sides compute it, neither is told.

A transfer moves blocks [first_block, first_block + blocks) of a prompt. A message is one group of
layers of a run of `message_blocks` blocks (the last run maybe shorter); its index counts the groups
of a run first, then the runs. P sends them in the order in which they are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from common.kv.digest import INDEX_MAX, Expected
from common.kv.layout import Geometry

MESSAGE_BYTES_MIN = 2 << 20
MESSAGES_WISHED = 16
GROUPS_WISHED = 8
GROUP_BYTES_MIN = 1 << 20
"""What a group of layers should have of the transfer at least. Each costs both ends some 60 us and
the engine a wake-up in the middle of its forward pass: a prompt of one MiB took it a tenth longer
when cut."""
WINDOW_MIN, WINDOW_MAX = 2, 8
LENT_WINDOW_BYTES = 8 << 20
"""Staging that both ends keep going through stays in their caches; with twice as much in flight a
copy to it is a third slower."""
WIRE_WINDOW_BYTES = 16 << 20
WIRE_MESSAGE_BYTES_MAX = 2 << 20
"""What P copies next must not be what the wire waits for: with two messages of 4 MiB on their way,
10 Gbit/s stood idle a fifth of the time, with eight of 2 MiB a twelfth. Smaller ones keep slow
wires yet busier, and cost each end more CPU than a fast one leaves."""
FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a geometry contributes; equal on P and D because their fingerprints are.
    `fp8_page_bytes` 0: this KV cannot be compressed."""

    layers: int
    block_bytes: int
    fp8_page_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        return self.block_bytes // self.layers

    def group_layers(self, layer_groups: int) -> int:
        """Layers of each group but the last, which may have fewer."""
        return -(-self.layers // max(1, min(layer_groups, self.layers)))


def shape_of(geometry: Geometry) -> Shape:
    return Shape(geometry.layers, geometry.block_bytes, geometry.fp8_page_bytes)


@dataclass(frozen=True, slots=True)
class Cut:
    """`message_blocks`: blocks of one message; `window`: messages on their way at most."""

    message_blocks: int
    window: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """Of one transfer, if its messages go over a wire and if P lends them."""

    wire: Cut
    lent: Cut


@dataclass(frozen=True, slots=True)
class Plan:
    """Raises ValueError for what no honest peer asks. `fp8`: P may compress any message. `groups`:
    messages of one run, each of `group_layers` layers but the last."""

    transfer: int
    first_block: int
    blocks: int
    message_blocks: int
    shape: Shape
    layer_groups: int = 1
    fp8: bool = field(default=False, kw_only=True)
    group_layers: int = field(init=False)
    groups: int = field(init=False)
    messages: int = field(init=False)

    def __post_init__(self) -> None:
        if (
            min(self.first_block, self.blocks) < 0
            or min(self.message_blocks, self.layer_groups) < 1
        ):
            raise ValueError(f"impossible transfer of {self.blocks} blocks for {self.transfer}")
        group_layers = self.shape.group_layers(self.layer_groups)
        groups = -(-self.shape.layers // group_layers)
        messages = -(-self.blocks // self.message_blocks) * groups
        if messages > INDEX_MAX:
            raise ValueError(f"{messages} messages exceed {INDEX_MAX} in one transfer")
        object.__setattr__(self, "group_layers", group_layers)
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "messages", messages)

    @property
    def end(self) -> int:
        return self.first_block + self.blocks

    @property
    def payload_bytes_max(self) -> int:
        """Of the largest message, not compressed."""
        blocks = min(self.message_blocks, self.blocks)
        return blocks * self.group_layers * self.shape.page_bytes

    def planned(self, index: int) -> Expected | None:
        """None: there is no such message."""
        return self.message(index) if index < self.messages else None

    def message(self, index: int) -> Expected:
        if not 0 <= index < self.messages:
            raise ValueError(f"message {index} of {self.messages}")
        run, group = divmod(index, self.groups)
        first_block = self.first_block + run * self.message_blocks
        blocks = min(self.message_blocks, self.end - first_block)
        first_layer = group * self.group_layers
        layers = min(self.group_layers, self.shape.layers - first_layer)
        pages = blocks * layers
        payload = pages * self.shape.page_bytes
        fp8 = pages * self.shape.fp8_page_bytes if self.fp8 else 0
        return Expected(
            self.transfer, index, first_block, blocks, first_layer, layers, payload, fp8
        )


def wished_groups(shape: Shape, blocks: int) -> int:
    """Into how many groups to cut the layers of so many blocks. What is left when the prefill ends
    is about one group of the last chunk, and the first token waits for it."""
    return max(1, min(GROUPS_WISHED, shape.layers, blocks * shape.block_bytes // GROUP_BYTES_MIN))


def message_blocks(message_bytes: int, shape: Shape, layer_groups: int, blocks: int) -> int:
    """Blocks of one message: about a sixteenth of the transfer, so that most of it leaves while the
    rest is computed, but no less than 2 MiB and no more than `message_bytes` (one block at
    least)."""
    unit = shape.group_layers(layer_groups) * shape.page_bytes
    wished = max(MESSAGE_BYTES_MIN, blocks * shape.block_bytes // MESSAGES_WISHED) // unit
    return max(1, min(wished, message_bytes // unit))


def wire_message_bytes(message_bytes: int) -> int:
    """The largest message over a wire where `message_bytes` is the largest of all."""
    return min(message_bytes, WIRE_MESSAGE_BYTES_MAX)


def cuts(message_bytes: int, shape: Shape, layer_groups: int, blocks: int) -> Cuts:
    """For a transfer of so many blocks; no message is larger than `message_bytes`."""
    unit = shape.group_layers(layer_groups) * shape.page_bytes

    def cut(largest: int, window_bytes: int) -> Cut:
        size = message_blocks(largest, shape, layer_groups, blocks)
        return Cut(size, max(WINDOW_MIN, min(WINDOW_MAX, window_bytes // (size * unit))))

    return Cuts(
        wire=cut(wire_message_bytes(message_bytes), WIRE_WINDOW_BYTES),
        lent=cut(message_bytes, LENT_WINDOW_BYTES),
    )

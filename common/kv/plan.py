"""How one transfer is cut into messages: both sides compute the same plan from a few numbers.

A transfer moves blocks [first_block, first_block + blocks) of a prompt. A *run* is `message_blocks`
consecutive blocks of it; the last run may be shorter. A message is one group of layers of one run.
Its index counts the groups of a run first, then the runs. P sends messages in the order in which
they are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from common.kv.checksum.header import INDEX_MAX, ExpectedMessage
from common.kv.layout import Geometry

MESSAGE_BYTES_MIN = 2 << 20
MESSAGES_TARGET = 16
"""Messages of a transfer, so that most of it leaves while the rest is computed."""
DEFAULT_LAYER_GROUPS_MAX = 8
GROUP_BYTES_MIN = 1 << 20
"""The part of a transfer that a group of layers should have at least. A group costs both ends some
60 us, and the engine a wake-up in the middle of its forward pass: groups made the prefill of a
prompt with one MiB of KV take a tenth longer."""
CARD_GROUP_BYTES_MIN = 16 << 20
"""The same on a card, where a message costs both ends as much as to move some tens of MiB."""
WINDOW_MIN, WINDOW_MAX = 2, 8
LOAN_WINDOW_BYTES = 8 << 20
"""Staging buffers that both ends reuse all the time stay in their caches; with twice as much in
flight a copy to them is a third slower."""
WIRE_WINDOW_BYTES = 16 << 20
WIRE_MESSAGE_BYTES_MAX = 2 << 20
"""The wire must not wait for P's next copy: with two messages of 4 MiB in flight, a 10 Gbit/s link
was idle a fifth of the time, with eight of 2 MiB a twelfth. Smaller messages keep slow links yet
busier, and cost each end more CPU than a fast link leaves."""
DIRECT_MESSAGES_TARGET = 4
"""For the same reason: over `cuda_ipc` even raw messages, eight in flight, ran at 104 GB/s where
they had 4 MiB, and at 1,139 where they had 64."""
FP8 = "fp8"


@dataclass(frozen=True, slots=True)
class KvShape:
    """What a plan needs of a geometry. P and D have the same, because their fingerprints are equal
    and D tells P whether it accepts compression."""

    layers: int
    block_bytes: int
    """One block over all layers."""
    fp8_page_bytes: int = 0
    """The size of a page as fp8; 0 if this KV cannot or must not be compressed."""

    def uncompressed(self) -> KvShape:
        """The shape where compression is not wanted."""
        return replace(self, fp8_page_bytes=0) if self.fp8_page_bytes else self

    @property
    def page_bytes(self) -> int:
        return self.block_bytes // self.layers

    def group_layers(self, layer_groups: int) -> int:
        """Layers of each group but the last, which may have fewer."""
        return -(-self.layers // max(1, min(layer_groups, self.layers)))


def shape_of(geometry: Geometry) -> KvShape:
    return KvShape(geometry.layers, geometry.block_bytes, geometry.fp8_page_bytes)


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a transfer is cut, and how much of it is in flight."""

    message_blocks: int
    """Blocks of one message."""
    window: int
    """Messages in flight at most."""


NO_CHUNKING = Chunking(1, 1)


@dataclass(frozen=True, slots=True)
class TransferChunking:
    """The chunking of one transfer, over the wire and by loan."""

    wire: Chunking
    """P sends them."""
    loan: Chunking
    """P loans them (`staging/loans.py`)."""
    direct: Chunking = NO_CHUNKING
    """P sends them from card to card."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """All messages of one transfer. Raises ValueError for what no correct peer asks."""

    transfer: int
    first_block: int
    blocks: int
    message_blocks: int
    shape: KvShape
    layer_groups: int = 1
    """Groups that D asked for; `groups` is what the number of layers makes of it."""
    direct: bool = False
    """Whether payloads travel from card to card, each as a message of its own after its header."""
    group_layers: int = field(init=False)
    """Layers of a group; the last group may have fewer."""
    groups: int = field(init=False)
    """Messages of one run."""
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
        """The payload of the largest message when it is not compressed."""
        blocks = min(self.message_blocks, self.blocks)
        return blocks * self.group_layers * self.shape.page_bytes

    def planned(self, index: int) -> ExpectedMessage | None:
        """None if there is no message with this index."""
        return self.message(index) if index < self.messages else None

    def message(self, index: int) -> ExpectedMessage:
        """Raises ValueError if there is no message with this index."""
        if not 0 <= index < self.messages:
            raise ValueError(f"message {index} of {self.messages}")
        run, group = divmod(index, self.groups)
        first_block = self.first_block + run * self.message_blocks
        blocks = min(self.message_blocks, self.end - first_block)
        first_layer = group * self.group_layers
        layers = min(self.group_layers, self.shape.layers - first_layer)
        pages = blocks * layers
        payload = pages * self.shape.page_bytes
        fp8 = pages * self.shape.fp8_page_bytes
        return ExpectedMessage(
            self.transfer, index, first_block, blocks, first_layer, layers, payload, fp8
        )


def default_layer_groups(shape: KvShape, blocks: int, *, on_card: bool = False) -> int:
    """The groups into which the layers of so many blocks are cut. When the prefill ends about one
    group of the last chunk remains to be sent, and the first token waits for it."""
    by_bytes = blocks * shape.block_bytes // (CARD_GROUP_BYTES_MIN if on_card else GROUP_BYTES_MIN)
    return max(1, min(DEFAULT_LAYER_GROUPS_MAX, shape.layers, by_bytes))


def message_blocks(
    message_bytes: int,
    shape: KvShape,
    layer_groups: int,
    blocks: int,
    messages: int = MESSAGES_TARGET,
) -> int:
    """Blocks of one message of a transfer of so many blocks: a `messages`th of it, but no less than
    `MESSAGE_BYTES_MIN` and no more than `message_bytes`, and one block at least."""
    unit = shape.group_layers(layer_groups) * shape.page_bytes
    target = max(MESSAGE_BYTES_MIN, blocks * shape.block_bytes // messages) // unit
    return max(1, min(target, message_bytes // unit))


def wire_message_bytes(message_bytes: int) -> int:
    """The largest message over a wire where `message_bytes` is the largest of all."""
    return min(message_bytes, WIRE_MESSAGE_BYTES_MAX)


def transfer_chunking(
    message_bytes: int, shape: KvShape, layer_groups: int, blocks: int, direct_bytes: int = 0
) -> TransferChunking:
    """For a transfer of so many blocks; no message is larger than `message_bytes`, or, from card to
    card, than `direct_bytes`; 0 if it cannot be."""
    unit = shape.group_layers(layer_groups) * shape.page_bytes

    def chunking(largest: int, window_bytes: int) -> Chunking:
        size = message_blocks(largest, shape, layer_groups, blocks)
        return Chunking(size, max(WINDOW_MIN, min(WINDOW_MAX, window_bytes // (size * unit))))

    direct = NO_CHUNKING
    if direct_bytes:
        size = message_blocks(direct_bytes, shape, layer_groups, blocks, DIRECT_MESSAGES_TARGET)
        direct = Chunking(size, WINDOW_MAX)
    return TransferChunking(
        wire=chunking(wire_message_bytes(message_bytes), WIRE_WINDOW_BYTES),
        loan=chunking(message_bytes, LOAN_WINDOW_BYTES),
        direct=direct,
    )

"""P's messages where the copies out of the blocks run by themselves: sent when copied, from card to
card in two parts, and no buffer free before both are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import HEADER_BYTES, INDEX_BITS
from common.kv.checksum.kernel import sum_of
from common.kv.compression.policy import CompressionChooser
from common.kv.handoff.protocol import SendData
from common.kv.layout import Geometry, HostMemory, Mark, Payload
from common.kv.messages import ConnectedPeer
from common.kv.packing import Packing
from common.kv.plan import TransferPlan, shape_of
from common.kv.sides.offered_prompt import OfferedPrompt
from common.kv.sides.outgoing import Outgoing
from common.kv.staging.loans import Loans
from common.kv.staging.pool import CardPool, StagingPool
from common.kv.transport.ucx import Done, data_tag, payload_tag
from tests.rigs.messages import ticket
from tests.unit.common.kv.headers import verify

GEOMETRY = Geometry(1, 8, 256, 8 * 256, 256)
TRANSFER, SLOT = 7, 1
HEADER, PAYLOAD = (tag(TRANSFER, SLOT, INDEX_BITS) for tag in (data_tag, payload_tag))


class Memory(HostMemory):
    """Copies when the test says so, out of what is there then."""

    device: Any

    def __init__(self) -> None:
        super().__init__(np.arange(GEOMETRY.end, dtype=np.uint64).astype(np.uint8), GEOMETRY)
        self.device = self
        self.running: list[Callable[[], None]] = []
        self.afters: list[Mark | None] = []

    def start_gather(
        self,
        block_ids: Sequence[int],
        out: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        ids = list(block_ids)
        self.afters.append(after)

        def copy() -> None:
            assert isinstance(out, np.ndarray)
            self.gather(ids, out, layers)
            done(sum_of(out))

        self.running.append(copy)


class Channel:
    id, loans, peer = 1, False, ConnectedPeer(1, "d0", "inc-d0")

    def __init__(self) -> None:
        self.link = self
        self.sent: dict[int, tuple[Bytes, Done]] = {}

    def data_key(self, transfer: int) -> bytes:
        return b""

    def send(self, message: Bytes, tag: int, done: Done) -> None:
        self.sent[tag] = (message, done)

    def progress(self) -> None:
        """Nothing is on a wire."""


class Bench:
    def __init__(self, *, direct: bool) -> None:
        self.memory, self.channel = Memory(), Channel()
        self.copied: list[OfferedPrompt] = []
        host = StagingPool(256, 0)
        self.pool = CardPool(np.zeros(8 * 256, np.uint8)) if direct else host
        self.out = Outgoing(
            Loans(host), CompressionChooser("none", 1.0, 0.0), lambda: 0.0, self.copied.append
        )
        self.prompt = OfferedPrompt(ticket(), ("r", 0), blocks=[3, 6], after=cast("Mark", "after"))
        self.plan = TransferPlan(TRANSFER, 0, 2, 1, shape_of(GEOMETRY), direct=direct)

    def send(self) -> bool:
        buffer = self.pool.acquire()
        assert buffer is not None
        channel, packing = cast("Any", self.channel), Packing(self.memory, 256)
        send = SendData(1, self.plan, 1, SLOT)
        return self.out.send(channel, self.prompt, packing, send, self.pool, buffer)


@pytest.fixture
def direct() -> Bench:
    return Bench(direct=True)


def test_a_message_is_sent_when_it_is_copied(direct: Bench) -> None:
    assert direct.send()
    assert direct.memory.afters == [direct.prompt.after]
    assert (direct.prompt.copies, direct.channel.sent, direct.copied) == (1, {}, [])
    direct.memory.running.pop()()
    assert (direct.prompt.copies, direct.copied) == (0, [direct.prompt])
    assert list(direct.channel.sent) == [HEADER, PAYLOAD]
    header, payload = (direct.channel.sent[tag][0] for tag in (HEADER, PAYLOAD))
    assert np.array_equal(payload, direct.memory.page(0, 6))
    whole = np.concatenate([header, payload])
    assert verify(whole, TRANSFER, SLOT, planned_of(direct)).index == 1
    assert direct.prompt.payload_bytes == 256


def planned_of(bench: Bench) -> Any:
    return bench.plan.planned


@pytest.mark.parametrize("order", [(HEADER, PAYLOAD), (PAYLOAD, HEADER)])
@pytest.mark.parametrize("errors", [(None, None), ("lost", None), (None, "lost")])
def test_a_buffer_is_free_when_both_parts_are_sent(
    direct: Bench, order: tuple[int, int], errors: tuple[str | None, str | None]
) -> None:
    direct.send()
    direct.memory.running.pop()()
    first, second = (direct.channel.sent[tag][1] for tag in order)
    first(errors[0])
    assert direct.pool.used == 1
    second(errors[1])
    assert direct.pool.used == 0
    assert direct.prompt.sent_bytes == (0 if any(errors) else 256)


def test_through_host_memory_both_are_one_message() -> None:
    bench = Bench(direct=False)
    assert bench.send()
    bench.memory.running.pop()()
    ((message, sent),) = bench.channel.sent.values()
    assert len(message) == HEADER_BYTES + 256
    assert verify(message, TRANSFER, SLOT, planned_of(bench)).index == 1
    assert bench.pool.used == 1
    sent(None)
    assert (bench.pool.used, bench.prompt.sent_bytes) == (0, 256)


def test_blocks_that_are_gone_are_not_copied(direct: Bench) -> None:
    direct.prompt.blocks = []
    assert not direct.send()
    assert (direct.memory.running, direct.prompt.copies) == ([], 0)
    assert list(direct.channel.sent) == [HEADER], "a void message"

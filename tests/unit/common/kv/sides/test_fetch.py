"""D's handoffs in parts: one that fails at once, before the others have begun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from common.config import KvConfig
from common.errors import Code
from common.kv.canonical import CanonicalMemory, HeadMajorPage
from common.kv.handoff.parts import WHOLE, key_of
from common.kv.handoff.protocol import Ended
from common.kv.handoff.receiver import FetchSpec
from common.kv.layout import Geometry, HostMemory
from common.kv.packing import Packing, Packings
from common.kv.sides.fetch import Fetches
from common.kv.sides.receive import ReceiveSide
from common.messages import KvReport, Ticket
from tests.rigs.messages import ticket

PAGE = HeadMajorPage(heads=2, tokens=16, items=16, item_bytes=4)
SIZE = PAGE.page_bytes
FAILED = Ended(Code.KV_TRANSFER_FAILED, "no such address")
IN_PARTS = ticket(canonical=True, parts=2, kv_address="h:1,h:2")


class Receives:
    """As much of a `ReceiveSide` as is used here."""

    def __init__(self, fetches: Fetches, *, fails: str) -> None:
        """`fails`: the address of the part that fails as it is asked for."""
        self._fetches, self._fails = fetches, fails
        self.asked: list[Ticket] = []
        self.open: dict[tuple[str, int], Ticket] = {}
        self.blocks: list[int] = []

    def fetch(
        self,
        part: Ticket,
        spec: FetchSpec,
        block_ids: Sequence[int],
        packing: Packing,
        after: object,
    ) -> None:
        assert spec.shape == packing.shape
        self.asked.append(part)
        self.blocks = list(block_ids)
        if part.kv_address == self._fails:
            self._fetches.end(part, KvReport(), FAILED)
        else:
            self.open[key_of(part)] = part

    def cancel(self, key: tuple[str, int], reason: str) -> None:
        part = self.open.pop(key, None)
        if part is not None:
            self._fetches.end(part, KvReport(), Ended(Code.CANCELLED, reason))


def bench(fails: str) -> tuple[Fetches, Receives, list[tuple[Ticket, Ended]]]:
    ended: list[tuple[Ticket, Ended]] = []
    geometry = Geometry(1, 4, SIZE, 4 * SIZE, SIZE)
    memory = HostMemory(np.zeros(geometry.end, np.uint8), geometry)
    packings = Packings(memory, SIZE, {"": CanonicalMemory(memory, PAGE)}, WHOLE)

    def on_ended(given: Ticket, _: KvReport, how: Ended) -> None:
        ended.append((given, how))

    fetches = Fetches(KvConfig(), packings, packings.plain.shape, on_ended, lambda: 0.0)
    receives = Receives(fetches, fails=fails)
    fetches.receive_side = cast("ReceiveSide", receives)
    return fetches, receives, ended


@pytest.mark.parametrize(("fails", "asked"), [("h:1", ["h:1"]), ("h:2", ["h:1", "h:2"])])
def test_a_part_that_fails_at_once_ends_the_whole(fails: str, asked: list[str]) -> None:
    fetches, receives, ended = bench(fails)
    fetches.fetch(IN_PARTS, 0, [1, 2])
    assert [part.kv_address for part in receives.asked] == asked
    assert ended == [(IN_PARTS, FAILED)]
    fetches.fetch(IN_PARTS, 0, [1, 2])
    assert len(ended) == 2, "nothing of the first is left"


def test_each_part_gets_all_blocks_and_heads_of_its_own() -> None:
    fetches, receives, ended = bench(fails="")
    fetches.fetch(IN_PARTS, 0, [1, 2])
    assert [part.kv_address for part in receives.asked] == ["h:1", "h:2"]
    assert receives.blocks == [1, 2]
    fetches.cancel(key_of(IN_PARTS), "enough")
    assert ended == [(IN_PARTS, Ended(Code.CANCELLED, "enough"))]

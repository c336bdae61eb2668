"""What is left of a stream that is over goes to a pool, for a while, and to no other holder."""

from __future__ import annotations

import msgspec

from common.kv.offers.offered import LASTING_S
from tests.unit.common.kv.offers.test_offered import HOLDER, Offering, hashes, names

POOL = msgspec.structs.replace(HOLDER, lasting=True)


class ToPool(Offering):
    def add_lasting(self, *blocks: int) -> None:
        self.side.add(("r", 1), POOL, hashes(*blocks), names(*blocks), max(blocks))


def test_the_rest_is_offered_after_the_end_and_then_forgotten() -> None:
    rig = ToPool(block_bytes=8 << 20)
    rig.add_lasting(1, 2)
    rig.side.over(("r", 1))
    rig.answer(1)
    assert [offer.hashes for offer in rig.offers] == [hashes(1), hashes(2)]
    rig.answer(1)
    assert (len(rig.side), rig.side.checkpoints(9)) == (0, ())
    assert (rig.counters.store_offered, rig.counters.offers_skipped) == (2, 0)


def test_a_stream_of_which_nothing_is_left_ends_at_once() -> None:
    rig = ToPool()
    rig.add_lasting(1)
    rig.answer(1)
    rig.side.over(("r", 1))
    assert rig.side.checkpoints(9) == ()


def test_another_holder_gets_nothing_after_the_end() -> None:
    rig = ToPool(block_bytes=8 << 20)
    rig.add(1, 2)
    rig.side.over(("r", 1))
    assert (len(rig.side), rig.side.checkpoints(9)) == (0, ())


def test_a_pool_that_is_gone_is_waited_for_so_long_and_the_rest_is_counted() -> None:
    rig = ToPool()
    rig.channel = None
    rig.add_lasting(1, 2, 3)
    rig.side.over(("r", 1))
    rig.now = LASTING_S - 0.1
    rig.side.tick()
    assert len(rig.side) == 3
    rig.now = LASTING_S
    rig.side.tick()
    assert (len(rig.side), rig.side.checkpoints(9)) == (0, ())
    assert rig.counters.offers_skipped == 3

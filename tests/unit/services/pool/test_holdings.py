"""What a pool tells of its blocks: each by its name, and no longer than it has it."""

from __future__ import annotations

from common.kv.store.table import BlockName
from common.messages import PrefixDelta
from services.pool.holdings import Holdings

HASHES = [bytes([at]) * 32 for at in range(4)]
NAMES = [bytes([at]) * 8 for at in range(4)]


def everything(_name: BlockName) -> bool:
    return True


def nothing(_name: BlockName) -> bool:
    return False


def filled() -> Holdings:
    made = Holdings(8)
    made.add(b"".join(HASHES), b"".join(NAMES), everything)
    return made


def told(made: Holdings, *, whole: bool = False) -> list[PrefixDelta]:
    return list(made.deltas(whole=whole))


def test_what_has_come_is_told_by_name_once() -> None:
    made = filled()
    assert told(made) == [PrefixDelta(stored=b"".join(NAMES), medium="store")]
    assert told(made) == []


def test_what_is_gone_is_told_and_what_is_held_again_is_not_removed() -> None:
    made = filled()
    told(made)
    made.update([BlockName(0, HASHES[at]) for at in (1, 2)], lambda name: name[1] != HASHES[1])
    assert told(made) == [PrefixDelta(removed=NAMES[1], medium="store")]


def test_a_block_that_went_before_its_name_came_is_not_told() -> None:
    made = Holdings(8)
    made.add(b"".join(HASHES), b"".join(NAMES), lambda name: name.block_hash != HASHES[0])
    assert told(made) == [PrefixDelta(stored=b"".join(NAMES[1:]), medium="store")]


def test_a_router_that_knows_nothing_is_told_all() -> None:
    made = filled()
    told(made)
    made.update([BlockName(0, HASHES[3])], nothing)
    assert told(made, whole=True) == [
        PrefixDelta(cleared=True, medium="store"),
        PrefixDelta(stored=b"".join(NAMES[:3]), medium="store"),
    ]


def test_when_a_tier_is_lost_what_only_that_had_is_told_to_be_gone() -> None:
    made = filled()
    told(made)
    made.check(lambda name: name.block_hash in HASHES[:1])
    assert told(made) == [PrefixDelta(removed=b"".join(NAMES[1:]), medium="store")]
    assert len(made) == 1


def test_it_knows_no_more_blocks_than_there_is_room_for() -> None:
    made = Holdings(2)
    made.add(b"".join(HASHES), b"".join(NAMES), everything)
    (delta,) = told(made, whole=True)[1:]
    assert delta.stored == b"".join(NAMES[2:])

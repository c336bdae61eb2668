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


def on_disk(*at: int, held: bool = True) -> dict[BlockName, bytes | None]:
    return {BlockName(0, HASHES[number]): NAMES[number] if held else None for number in at}


def test_the_disk_is_told_apart_and_goes_apart() -> None:
    made = Holdings(8, 8)
    made.add(HASHES[0], NAMES[0], everything)
    made.update_disk(on_disk(0, 1))
    assert told(made) == [
        PrefixDelta(stored=NAMES[0], medium="store"),
        PrefixDelta(stored=NAMES[0] + NAMES[1], medium="disk"),
    ]
    assert len(made) == 2
    assert made.ends_of(b"".join(NAMES)) == HASHES[0][-8:] + HASHES[1][-8:], "each once"
    made.update_disk(on_disk(0, 1, held=False))
    assert told(made) == [PrefixDelta(removed=NAMES[0] + NAMES[1], medium="disk")]
    assert len(made) == 1


def test_what_comes_back_to_memory_has_the_name_that_it_had_on_disk() -> None:
    made = Holdings(8, 8)
    made.update_disk(on_disk(1))
    told(made)
    made.update([BlockName(0, HASHES[1]), BlockName(0, HASHES[2])], everything)
    assert told(made) == [PrefixDelta(stored=NAMES[1], medium="store")]


def test_a_block_on_disk_without_a_name_has_that_of_memory_or_is_left_out() -> None:
    made = Holdings(8, 8)
    made.add(HASHES[0], NAMES[0], everything)
    told(made)
    made.update_disk({BlockName(0, HASHES[0]): b"", BlockName(0, HASHES[1]): b""})
    assert told(made) == [PrefixDelta(stored=NAMES[0], medium="disk")]


def test_it_knows_no_more_blocks_than_there_is_room_for() -> None:
    made = Holdings(2)
    made.add(b"".join(HASHES), b"".join(NAMES), everything)
    (delta,) = told(made, whole=True)[1:]
    assert delta.stored == b"".join(NAMES[2:])

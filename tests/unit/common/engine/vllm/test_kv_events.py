"""vLLM's KV events, as its publisher encodes them, become our hashes; losses forget, never lie."""

from itertools import count
from typing import Any

import msgspec
import pytest

from common.blocks import Kept, KvGroup
from common.engine.vllm.kv_events import PrefixWatch
from common.kv.messages import KvCopied
from common.messages import PREFIX_DELTA_HASHES_MAX, ImageFeatures, PrefixDelta
from common.net.wire import pack_ids
from common.prefix import prefix_hashes, split

BLOCK = 16
IDS = list(range(500, 580))


def stored(theirs: list[Any], ids: list[int], parent: Any = None, **more: Any) -> dict[str, Any]:
    """A map as vLLM 0.32 sends it."""
    fields = {
        "type": "BlockStored",
        "block_hashes": theirs,
        "parent_block_hash": parent,
        "token_ids": ids,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(theirs),
        "group_idx": 0,
    }
    return fields | more


def removed(theirs: list[Any], group: int = 0) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": theirs, "medium": "GPU", "group_idx": group}


CLEARED = {"type": "AllBlocksCleared"}


class Publisher:
    def __init__(
        self, blocks_max: int = 100, groups: tuple[KvGroup, ...] = (), stored_max: int = 0
    ) -> None:
        self.watch = PrefixWatch(BLOCK, blocks_max, groups, stored_max=stored_max)
        self.numbers = count(7)

    def publish(self, *events: dict[str, Any]) -> None:
        batch = msgspec.msgpack.encode([123.4, list(events), 0])
        self.watch.on_frames([b"", next(self.numbers).to_bytes(8, "big"), batch])

    def deltas(self, *, whole: bool = False) -> tuple[list[bytes], list[bytes], bool]:
        """(stored, removed, cleared), of one group."""
        return told(list(self.watch.deltas(whole=whole)))

    def by_group(self, *, whole: bool = False) -> dict[int, tuple[list[bytes], list[bytes]]]:
        """(stored, removed) for each group of which something is told."""
        deltas = list(self.watch.deltas(whole=whole))
        groups = {delta.group for delta in deltas if not delta.cleared}
        return {at: told([d for d in deltas if d.group == at])[:2] for at in sorted(groups)}


def told(deltas: list[PrefixDelta]) -> tuple[list[bytes], list[bytes], bool]:
    return (
        split(b"".join(delta.stored for delta in deltas)),
        split(b"".join(delta.removed for delta in deltas)),
        any(delta.cleared for delta in deltas),
    )


def image(digest: str, offset: int, length: int) -> ImageFeatures:
    return ImageFeatures(digest=digest, offset=offset, length=length, data=b"")


def ours(ids: list[int], salt: str | None = None) -> list[bytes]:
    return split(prefix_hashes(pack_ids(ids), BLOCK, salt))


@pytest.fixture
def vllm() -> Publisher:
    return Publisher()


def test_a_prompt_stored_in_parts_has_the_names_that_gateways_give_it(vllm: Publisher) -> None:
    vllm.publish(stored([11, 12], IDS[:32]))
    assert vllm.deltas() == (ours(IDS[:32]), [], False)
    vllm.publish(stored([13, 14, 15], IDS[32:80], parent=12))
    assert vllm.deltas() == (ours(IDS)[2:], [], False)
    assert vllm.deltas() == ([], [], False)


def test_hashes_may_be_bytes(vllm: Publisher) -> None:
    vllm.publish(stored([b"x" * 32], IDS[:16]), stored([b"y" * 32], IDS[16:32], parent=b"x" * 32))
    assert vllm.deltas()[0] == ours(IDS[:32])


def test_the_tenant_s_salt_is_in_the_first_block(vllm: Publisher) -> None:
    vllm.publish(stored([11, 12], IDS[:32], extra_keys=[("tenant-a",), None]))
    vllm.publish(stored([21], IDS[:16], extra_keys=[("tenant-b",)]))
    assert vllm.deltas()[0] == ours(IDS[:32], "tenant-a") + ours(IDS[:16], "tenant-b")


def test_removed_blocks_are_told_by_our_names(vllm: Publisher) -> None:
    vllm.publish(stored([11, 12], IDS[:32]))
    vllm.deltas()
    vllm.publish(removed([12, 99]))
    assert vllm.deltas() == ([], ours(IDS)[1:2], False)


def test_what_came_and_went_between_two_tellings_is_not_held(vllm: Publisher) -> None:
    vllm.publish(stored([11, 12], IDS[:32]), removed([12]))
    kept, gone, _ = vllm.deltas()
    assert kept == ours(IDS)[:1]
    assert gone == ours(IDS)[1:2]
    vllm.publish(removed([11]), stored([11], IDS[:16]))
    assert vllm.deltas() == (ours(IDS)[:1], [], False)


WINDOW = KvGroup(BLOCK, Kept.WINDOW, 20)
MIXED = (WINDOW, KvGroup(BLOCK), KvGroup(4 * BLOCK, Kept.WINDOW, 20))
"""The second one names the blocks. The third has blocks of another size."""


def test_a_group_that_is_not_told_of_changes_nothing(vllm: Publisher) -> None:
    """Each group stores and drops blocks of its own under the same hashes."""
    vllm.publish(stored([11, 12], IDS[:32]), stored([12], IDS[16:32], parent=11, group_idx=1))
    vllm.publish(removed([12], group=1))
    assert vllm.deltas() == (ours(IDS[:32]), [], False)
    assert vllm.watch.dropped == 0


def test_each_group_is_told_by_the_names_of_the_first_that_keeps_all() -> None:
    """A window has the end of a prompt, whose parent it never had; its events may come first."""
    vllm, names = Publisher(groups=MIXED), ours(IDS[:48])
    vllm.publish(
        stored([13], IDS[32:48], parent=12, group_idx=0),
        stored([11, 12, 13], IDS[:48], group_idx=1),
        stored([99], IDS[:64], group_idx=2, block_size=64),
    )
    assert vllm.by_group() == {0: (names[2:], []), 1: (names, [])}
    assert vllm.by_group() == {}
    vllm.publish(stored([12], IDS[16:32], parent=11, group_idx=0), removed([13, 77], group=0))
    assert vllm.by_group() == {0: (names[1:2], names[2:])}
    assert vllm.by_group(whole=True) == {0: (names[1:2], []), 1: (names, [])}
    assert vllm.watch.dropped == 0


def test_a_block_without_a_name_is_in_no_group() -> None:
    """It comes back with its name, if the other group has it still."""
    vllm, names = Publisher(groups=MIXED), ours(IDS[:32])
    vllm.publish(stored([11, 12], IDS[:32], group_idx=1), stored([11, 12], IDS[:32], group_idx=0))
    vllm.by_group()
    vllm.publish(removed([11, 12], group=1), removed([12], group=0))
    assert vllm.by_group() == {0: ([], names), 1: ([], names)}
    vllm.publish(stored([11, 12], IDS[:32], group_idx=1))
    assert vllm.by_group() == {0: (names[:1], []), 1: (names, [])}


def test_a_loss_forgets_the_blocks_of_all_groups() -> None:
    vllm = Publisher(groups=MIXED)
    vllm.publish(stored([11], IDS[:16], group_idx=1), stored([11], IDS[:16], group_idx=0))
    vllm.publish(CLEARED)
    assert vllm.by_group(whole=True) == {}
    vllm.publish(stored([11], IDS[:16], group_idx=1))
    assert vllm.by_group() == {1: (ours(IDS[:16]), [])}


def test_blocks_of_another_group_are_bounded_too() -> None:
    vllm, names = Publisher(blocks_max=2, groups=MIXED), ours(IDS[:48])
    vllm.publish(stored([11, 12], IDS[:32], group_idx=1))
    vllm.publish(stored([11, 12, 13], IDS[:48], group_idx=0))
    assert vllm.by_group()[0] == (names[1:2], names[:1])


def test_a_reset_cache_is_told_first(vllm: Publisher) -> None:
    vllm.publish(stored([11], IDS[:16]))
    vllm.publish(CLEARED, stored([21], IDS[:16]))
    deltas = list(vllm.watch.deltas())
    assert deltas == [PrefixDelta(cleared=True), PrefixDelta(stored=ours(IDS)[0])]


def test_lost_messages_forget_everything_before(vllm: Publisher) -> None:
    vllm.publish(stored([11], IDS[:16]))
    vllm.deltas()
    next(vllm.numbers)
    vllm.publish(stored([12], IDS[16:32], parent=11))
    assert vllm.deltas() == ([], [], True), "its parent may have been evicted meanwhile"
    assert vllm.watch.dropped == 1


@pytest.mark.parametrize(
    "frames",
    [[], [b"", b"", b"\xc1"], [b"", bytes(8)], [b"", (8).to_bytes(8, "big"), b"junk"], [b"a"] * 9],
)
def test_frames_of_another_kind_are_a_loss(frames: list[bytes], vllm: Publisher) -> None:
    vllm.publish(stored([11], IDS[:16]))
    vllm.deltas()
    vllm.watch.on_frames(frames)
    assert vllm.deltas() == ([], [], True)


@pytest.mark.parametrize(
    "event",
    [
        stored([11], IDS[:16], parent=99),
        stored([11], IDS[:16], block_size=32),
        stored([11], IDS[:16], extra_keys=[("lora", "salt")]),
        stored([11, 12], IDS[:32], extra_keys=[(("lora", "a@1", "/a"),), (("lora", "b", "/b"),)]),
        stored([11], IDS[:16], extra_keys=[(("image", "3"),)]),
        stored([11, 12], IDS[:32], extra_keys=[None, (b"prompt embeddings",)]),
        stored([11, 12], IDS[:32], extra_keys=[None, ("salt",)]),
    ],
)
def test_what_cannot_be_named_is_left_out_and_counted(event: dict[str, Any]) -> None:
    vllm = Publisher()
    vllm.publish(event)
    assert vllm.deltas() == ([], [], False)
    assert vllm.watch.dropped == len(event["block_hashes"])


def test_blocks_of_an_adapter_have_the_names_that_gateways_give_them(vllm: Publisher) -> None:
    key = ("lora", "sql@1", "/srv/sql")
    vllm.publish(stored([11, 12], IDS[:32], extra_keys=[(key, "salt"), (key,)]))
    vllm.publish(stored([13], IDS[32:48], parent=12, extra_keys=[(key,)]))
    names = split(prefix_hashes(pack_ids(IDS[:48]), BLOCK, "salt", (), "sql@1"))
    assert vllm.deltas() == (names, [], False)
    others = [("", "salt"), ("sql@2", "salt"), ("sql@1", "pepper")]
    for adapter, salt in others:
        assert not set(names) & set(
            split(prefix_hashes(pack_ids(IDS[:48]), BLOCK, salt, (), adapter))
        )


def test_blocks_with_images_have_the_names_that_gateways_give_them(vllm: Publisher) -> None:
    """Of two images, the first reaches into the second block and the second ends in the fourth."""
    pictures = (image("aa", 4, 14), image("bb", 20, 40))
    names = split(prefix_hashes(pack_ids(IDS[:80]), BLOCK, "salt", pictures))
    keys = [
        (("aa", 4), "salt"),
        (("aa", -12), ("bb", 4)),
        (("bb", -12),),
        (("bb", -28),),
        None,
    ]
    vllm.publish(stored([11, 12, 13, 14, 15], IDS[:80], extra_keys=keys))
    assert vllm.deltas()[0] == names
    assert vllm.watch.dropped == 0


def test_whole_is_all_that_is_there(vllm: Publisher) -> None:
    vllm.publish(stored([11, 12, 13], IDS[:48]))
    vllm.deltas()
    vllm.publish(removed([13]))
    assert vllm.deltas(whole=True) == (ours(IDS[:32]), [], True)
    assert vllm.deltas() == ([], [], False)


def test_bounds() -> None:
    vllm = Publisher(blocks_max=2)
    vllm.publish(stored([11, 12, 13], IDS[:48]))
    assert vllm.deltas()[0] == ours(IDS)[1:3]
    vllm = Publisher(blocks_max=3 * PREFIX_DELTA_HASHES_MAX)
    n = 2 * PREFIX_DELTA_HASHES_MAX + 1
    vllm.publish(stored(list(range(1, n + 1)), [7] * (BLOCK * n), extra_keys=None))
    deltas = list(vllm.watch.deltas())
    assert [len(delta.stored) // 8 for delta in deltas] == [PREFIX_DELTA_HASHES_MAX] * 2 + [1]


def in_store(kind: str, theirs: list[Any]) -> dict[str, Any]:
    """As the connector tells it."""
    more: dict[str, Any] = {"parent_block_hash": None, "token_ids": [], "block_size": 0}
    held = more if kind == "BlockStored" else {}
    return {"type": kind, "block_hashes": theirs, "medium": "STORE", **held}


def of_store(vllm: Publisher, *, whole: bool = False) -> list[PrefixDelta]:
    return [delta for delta in vllm.watch.deltas(whole=whole) if delta.medium == "store"]


def test_the_store_s_blocks_have_the_names_of_the_engine_s_also_when_it_let_them_go() -> None:
    vllm = Publisher(stored_max=8)
    vllm.publish(stored([11, 12], IDS[:32]))
    vllm.publish(removed([12]), in_store("BlockStored", [11, 12, 99]))
    assert of_store(vllm) == [PrefixDelta(stored=b"".join(ours(IDS[:32])), medium="store")]
    vllm.publish(removed([11]), CLEARED)
    assert of_store(vllm) == [], "what the engine drops the store still has"
    vllm.publish(in_store("BlockRemoved", [11]))
    assert of_store(vllm) == [PrefixDelta(removed=ours(IDS)[0], medium="store")]
    whole = of_store(vllm, whole=True)
    assert [delta.cleared for delta in whole] == [True, False]
    assert split(whole[1].stored) == ours(IDS[:32])[1:]


def test_the_store_s_blocks_are_bounded_and_forgotten_after_a_loss() -> None:
    vllm = Publisher(stored_max=1)
    vllm.publish(stored([11, 12], IDS[:32]), in_store("BlockStored", [11, 12]))
    told = of_store(vllm)
    assert [split(delta.stored) for delta in told if delta.stored] == [ours(IDS)[1:2]]
    next(vllm.numbers)
    vllm.publish()
    assert of_store(vllm) == [PrefixDelta(cleared=True, medium="store")]


def test_a_worker_without_a_store_tells_nothing_of_one(vllm: Publisher) -> None:
    vllm.publish(stored([11], IDS[:16]), in_store("BlockStored", [11]))
    assert of_store(vllm, whole=True) == []


def test_copies_have_the_names_that_they_were_offered_with() -> None:
    vllm = Publisher(stored_max=8)
    first, second = ours(IDS[:32])
    hashes = [bytes(24) + number.to_bytes(8, "big") for number in (11, 12)]
    vllm.watch.on_copied(KvCopied(hashes=b"".join(hashes), names=first + second))
    assert of_store(vllm) == [PrefixDelta(stored=first + second, medium="store")]
    vllm.publish(in_store("BlockStored", [11, 12]))
    assert vllm.watch.dropped == 0, "the engine's event tells what is known"
    assert [split(delta.stored) for delta in of_store(vllm)] == [[first, second]]
    vllm.publish(in_store("BlockRemoved", [11]))
    assert of_store(vllm) == [PrefixDelta(removed=first, medium="store")]
    assert split(of_store(vllm, whole=True)[1].stored) == [second]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_what_an_order_names_is_told_by_the_ends_of_the_engines_hashes(*, as_bytes: bool) -> None:
    """vLLM publishes either the last bytes as a number, or the whole hash."""
    vllm = Publisher(stored_max=8)
    first, second = ours(IDS[:32])
    ends = [number.to_bytes(8, "big") for number in (11, 12)]
    theirs: list[Any] = [b"h" * 24 + end for end in ends] if as_bytes else [11, 12]
    vllm.publish(stored(theirs, IDS[:32]), in_store("BlockStored", theirs))
    assert vllm.watch.ends_of(second + bytes(8) + first) == ends[1] + ends[0]

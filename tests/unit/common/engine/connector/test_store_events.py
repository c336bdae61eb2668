"""What the store tells through vLLM's events is what the daemon's watch of them understands."""

from __future__ import annotations

import msgspec
from vllm.distributed.kv_events import BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from common.engine.connector.store_events import store_events
from common.engine.vllm.kv_events import PrefixWatch
from common.kv.messages import KvCopied
from common.kv.store.table import BlockName
from common.messages import PrefixDelta
from common.net.wire import pack_ids
from common.prefix import prefix_hashes, split

BLOCK = 16
IDS = list(range(500, 532))
NAMES = [BlockName(0, bytes([at]) * 32) for at in (1, 2)]


def test_what_the_store_holds_and_drops_reaches_the_watch() -> None:
    watch = PrefixWatch(BLOCK, 8, stored_max=8)
    numbers = iter(range(9))

    def publish(events: list[object]) -> list[PrefixDelta]:
        batch = msgspec.msgpack.encode(KVEventBatch(ts=1.0, events=events))
        watch.on_frames([b"", next(numbers).to_bytes(8, "big"), batch])
        return [delta for delta in watch.deltas() if delta.medium == "store"]

    engine = BlockStored(
        block_hashes=[maybe_convert_block_hash(BlockHash(name.block_hash)) for name in NAMES],
        parent_block_hash=None,
        token_ids=IDS,
        block_size=BLOCK,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )
    ours = split(prefix_hashes(pack_ids(IDS), BLOCK, None))
    assert publish([engine]) == []
    held = publish([*store_events(dict.fromkeys(NAMES, True))])
    assert held == [PrefixDelta(stored=b"".join(ours), medium="store")]
    gone = publish([*store_events({NAMES[1]: False})])
    assert gone == [PrefixDelta(removed=ours[1], medium="store")]
    assert store_events({}) == []


def test_the_disk_is_known_by_names_that_no_engine_told() -> None:
    watch = PrefixWatch(BLOCK, 8, stored_max=8, on_disk_max=8)
    ours = split(prefix_hashes(pack_ids(IDS), BLOCK, None))
    hashes = [name.block_hash for name in NAMES]
    watch.on_copied(KvCopied(hashes=b"".join(hashes), names=b"".join(ours), disk=True))
    assert list(watch.deltas()) == [PrefixDelta(stored=b"".join(ours), medium="disk")]
    batch = KVEventBatch(ts=1.0, events=[*store_events({NAMES[0]: True})])
    watch.on_frames([b"", bytes(8), msgspec.msgpack.encode(batch)])
    promoted = list(watch.deltas())
    assert promoted == [PrefixDelta(stored=ours[0], medium="store")], "it came from the disk"
    assert watch.ends_of(b"".join(ours)) == b"".join(theirs[-8:] for theirs in hashes)
    watch.on_frames([b"lost"])
    assert {delta.medium for delta in watch.deltas()} == {"engine", "store"}
    watch.on_copied(KvCopied(hashes=b"", names=b"", gone=hashes[1], disk=True))
    assert list(watch.deltas()) == [PrefixDelta(removed=ours[1], medium="disk")]
    whole = [delta for delta in watch.deltas(whole=True) if delta.medium == "disk"]
    assert whole == [
        PrefixDelta(cleared=True, medium="disk"),
        PrefixDelta(stored=ours[0], medium="disk"),
    ]

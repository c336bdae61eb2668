"""What a prompt in the router's queue is ordered by: the engine's own hashes, of what the engine
lacks of its whole blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from common.engine.port import EngineRequest
from common.engine.vllm.kv_events import PrefixWatch
from common.engine.vllm.prefetch import ORDERS_MAX, PrefetchOrders
from common.kv.messages import DaemonToKv, KvArrived, KvPrefetch
from common.messages import Capacity, ImageFeatures, KvSource, Role, Sampling
from common.net.wire import pack_ids
from common.prefix import prefix_hashes

BLOCK = 16
IDS = list(range(3 * BLOCK))
SOURCE = KvSource(
    name="d1", incarnation="i", fingerprint="f", kv_address="h:1", tokens=10 * BLOCK + 1
)


class Bench:
    def __init__(self, pull_blocks: int = 8) -> None:
        self.sent: list[DaemonToKv] = []
        capacity = Capacity(
            block_tokens=BLOCK,
            kv_blocks=64,
            kv_block_bytes=1024,
            max_model_len=4096,
            max_num_seqs=8,
            pull_blocks=pull_blocks,
        )
        cache = SimpleNamespace(prefix_caching_hash_algo="sha256")
        processor: Any = SimpleNamespace(vllm_config=SimpleNamespace(cache_config=cache))
        self.watch = PrefixWatch(BLOCK, 64, stored_max=8)
        self.orders = PrefetchOrders(processor, capacity, self.watch, self.sent.append)

    def order(self, ids: list[int], name: str = "r", **more: Any) -> KvPrefetch | None:
        self.sent.clear()
        sampling = Sampling(max_tokens=4)
        self.orders.order(EngineRequest(name, 1, Role.PREFILL, ids, sampling, **more))
        if not self.sent:
            return None
        (order,) = self.sent
        assert isinstance(order, KvPrefetch)
        return order

    def engine_has(self, hashes: list[bytes]) -> None:
        """The engine's cache tells of the prompt's leading blocks."""
        event = {
            "type": "BlockStored",
            "block_hashes": [int.from_bytes(at[-8:], "big") for at in hashes],
            "parent_block_hash": None,
            "token_ids": IDS[: BLOCK * len(hashes)],
            "block_size": BLOCK,
        }
        frames = [b"", bytes(8), msgspec.msgpack.encode([0.0, [event]])]
        self.watch.on_frames(frames)


def split(order: KvPrefetch | None) -> list[bytes]:
    assert order is not None
    return [order.hashes[at : at + 32] for at in range(0, len(order.hashes), 32)]


def test_whole_blocks_but_never_the_last_token_and_their_names_go_along() -> None:
    bench = Bench()
    order = bench.order([*IDS, 1], source=SOURCE)
    assert order is not None
    assert (len(split(order)), order.source, order.source_blocks) == (3, SOURCE, 10)
    assert order.names == prefix_hashes(pack_ids(IDS), BLOCK, None)
    assert split(bench.order(IDS)) == split(order)[:2]
    assert bench.order(IDS[:BLOCK]) is None
    assert split(bench.order([*IDS[:BLOCK], 99, *IDS[BLOCK:]]))[0] == split(order)[0]


def test_a_salt_makes_other_hashes_and_other_names() -> None:
    bench = Bench()
    plain, salted = bench.order(IDS), bench.order(IDS, cache_salt="tenant")
    assert plain is not None
    assert salted is not None
    assert not set(split(plain)) & set(split(salted))
    assert salted.names == prefix_hashes(pack_ids(IDS[: 2 * BLOCK]), BLOCK, "tenant")


@pytest.mark.parametrize(("cached", "ordered"), [(1, 2), (2, 1), (3, 0)])
def test_what_the_engine_has_is_left_out(cached: int, ordered: int) -> None:
    bench = Bench()
    whole = split(bench.order([*IDS, 1]))
    bench.engine_has(whole[:cached])
    order = bench.order([*IDS, 1], source=SOURCE)
    if not ordered:
        assert order is None
        return
    assert order is not None
    assert split(order) == whole[cached:]
    assert order.names == prefix_hashes(pack_ids(IDS), BLOCK, None)[8 * cached :]
    assert order.source_blocks == 10 - cached


def test_images_adapters_and_stores_for_oneself_alone_are_left_alone() -> None:
    image = ImageFeatures(digest="d", offset=0, length=4, data=b"")
    assert Bench().order([*IDS, 1], images=(image,)) is None
    assert Bench().order([*IDS, 1], adapter="a") is None
    assert Bench(pull_blocks=0).order([*IDS, 1]) is None


def test_a_request_that_comes_is_told_once_and_only_if_it_was_ordered() -> None:
    bench = Bench()
    bench.order([*IDS, 1])
    bench.sent.clear()
    for name in ("other", "r", "r"):
        bench.orders.arrived(name, 1)
    assert bench.sent == [KvArrived(request_id="r", attempt=1)]


def test_the_oldest_of_too_many_is_forgotten() -> None:
    bench = Bench()
    for number in range(ORDERS_MAX + 1):
        bench.order([*IDS, 1], name=f"r{number}")
    bench.sent.clear()
    for number in (0, 1):
        bench.orders.arrived(f"r{number}", 1)
    assert bench.sent == [KvArrived(request_id="r1", attempt=1)]

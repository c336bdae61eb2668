"""An operator's orders for blocks of a store, through the KV service of an engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from common.kv.messages import KvOrder
from common.messages import StoreAction
from tests.component.common.kv.offers.test_copies import STORING, hashes
from tests.component.common.kv.service_peer import GEOMETRY, make_service, wait_for
from tests.component.common.kv.stored import Stored


@pytest.fixture
def stored() -> Iterator[Stored]:
    service, _ = make_service("d2", np.zeros(GEOMETRY.end, np.uint8), STORING)
    made = Stored(service)
    made.save(hashes(4), [5, 6, 7, 8])
    yield made
    service.stop()


def order(stored: Stored, action: StoreAction, count: int) -> None:
    ends = b"".join(block_hash[-8:] for block_hash in hashes(count))
    stored._service.order_store(KvOrder(action=action, ends=ends))


def test_pinned_blocks_outlast_their_time_and_unpinned_ones_do_not(stored: Stored) -> None:
    order(stored, "pin", 2)
    wait_for(lambda: stored.table.counts.pinned == 2)
    stored.expire()
    assert stored.held() == 2
    order(stored, "unpin", 2)
    wait_for(lambda: stored.table.counts.pinned == 0)
    stored.expire()
    assert stored.held() == 0


def test_dropped_blocks_are_gone_and_the_engine_hears_of_them(stored: Stored) -> None:
    order(stored, "drop", 3)
    wait_for(lambda: stored.held() == 1)
    store = stored._service.store
    assert store is not None
    told: list[bytes] = []

    def all_told() -> bool:
        told.extend(store.drain().dropped_ends)
        return len(told) == 3

    wait_for(all_told)
    assert told == [block_hash[-8:] for block_hash in hashes(3)]
    stored.table.check_invariants()

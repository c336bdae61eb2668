"""Blocks of another worker's store that a request in the queue will want, over UCX between two
processes: the right bytes in the own store, and nothing left behind at either end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from common.kv.messages import DaemonToKv, KvArrived, KvPrefetch, KvRelease
from common.kv.store.table import BlockName
from common.messages import KvSource
from tests.component.common.kv.offers.test_copies import (
    LONG_S,
    SOURCE,
    STORING,
    Taker,
    assert_clean,
    hashes,
    names,
    offering,
)
from tests.component.common.kv.service_peer import Remote, staging_used, wait_for

ORDER = KvPrefetch(
    request_id="r", attempt=1, hashes=b"".join(hashes()), names=names(), source_blocks=len(SOURCE)
)


class Waiting(Taker):
    """The worker that prefetches, in this process."""

    def order(self, giver: Remote) -> None:
        source = KvSource(
            name="d1", incarnation="inc-d1", fingerprint="f", kv_address=giver.address, tokens=0
        )
        self.tell(
            KvPrefetch(
                request_id="r",
                attempt=1,
                hashes=ORDER.hashes,
                names=ORDER.names,
                source=source,
                source_blocks=ORDER.source_blocks,
            )
        )

    def tell(self, message: DaemonToKv) -> None:
        """As the daemon tells it over the side channel."""
        self.service._call(lambda kv: kv._from_daemon(message))

    def load(self, giver_blocks: list[int]) -> None:
        """The engine reads all of them out of the store, each to the block that it has at the
        giver."""
        store = self.service.store
        assert store is not None
        slots = self.stored.table.take([BlockName(0, at) for at in hashes()], 0.0)
        self.stored.load(slots, hashes(), giver_blocks)


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    waiting = Waiting(STORING)
    yield waiting
    waiting.service.stop()


def test_all_blocks_come_and_are_kept_until_the_engine_reads_them(waiting: Waiting) -> None:
    with offering(waiting) as giver:
        waiting.order(giver)
        wait_for(lambda: waiting.counts().prefetched == len(SOURCE), LONG_S)
        waiting.assert_right()
        assert waiting.stored.readers() == len(SOURCE)
        waiting.tell(KvArrived(request_id="r", attempt=1))
        waiting.load(SOURCE)
        wait_for(lambda: waiting.counts().prefetch_used == len(SOURCE), LONG_S)
        assert_clean(waiting, giver)
        assert waiting.service.drain() == [], "no engine hears of a prefetch"
        counts = waiting.counts()
        assert (counts.store_copied, counts.store_pulled, counts.handoffs_in) == (0, 0, 0)
        assert (counts.prefetch_wasted, counts.prefetch_late, counts.bytes_in > 0) == (0, 0, True)


def test_what_is_taken_back_amid_the_transfer_leaves_no_reader_behind(waiting: Waiting) -> None:
    with offering(waiting) as giver:
        waiting.order(giver)
        waiting.tell(KvRelease(request_id="r", attempt=1, reason="placed elsewhere"))

        def is_over() -> bool:
            counts = waiting.counts()
            return counts.prefetched == counts.prefetch_wasted == len(SOURCE)

        wait_for(is_over, LONG_S)
        assert_clean(waiting, giver)


def test_a_giver_that_dies_amid_it_leaves_nothing_behind(waiting: Waiting) -> None:
    with offering(waiting, fault="swallow") as giver:
        waiting.order(giver)
        wait_for(lambda: waiting.stored.table.counts.held == 0)
        wait_for(lambda: staging_used(waiting.service) > 0 or len(giver_pulls(waiting)) > 0, LONG_S)
        giver.process.kill()
        giver.process.join()
        wait_for(lambda: not giver_pulls(waiting), LONG_S)
        wait_for(lambda: waiting.stored.readers() == 0, LONG_S)
        assert waiting.counts().prefetched == 0
        assert waiting.slots() == []


def giver_pulls(waiting: Waiting) -> list[object]:
    kv_thread = waiting.service._kv_thread
    assert kv_thread is not None
    return list(kv_thread.receive_side._fetches)

"""Blocks of one worker's store copied to another's, over UCX between two processes: the right bytes
or none, no engine takes part, and nothing is left behind at either end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import msgspec
import numpy as np
import pytest

from common.config import KvConfig, StoreConfig
from common.identity import is_copy
from common.kv.layout import HostMemory
from common.kv.messages import KvStatus
from common.kv.store.arena import Arena
from common.kv.store.table import BlockName
from common.messages import KvCheckpoint, KvCounts, KvHolder
from tests.component.common.kv.service_peer import (
    CONFIG,
    GEOMETRY,
    LAYERS,
    WIRE_ONLY,
    Remote,
    drained,
    filled,
    linked,
    make_service,
    remote,
    staging_used,
    wait_for,
)
from tests.component.common.kv.stored import STORE_SLOTS, Stored

KEY = ("r", 1)
LONG_S = 30.0
SOURCE = [5, 6, 7, 20, 21, 3, *range(30, 45)]


def hashes(count: int = len(SOURCE)) -> list[bytes]:
    return [bytes([at]) * 32 for at in range(1, count + 1)]


def names(count: int = len(SOURCE)) -> bytes:
    return b"".join(bytes([at]) * 8 for at in range(1, count + 1))


def with_store(config: KvConfig, **changes: object) -> KvConfig:
    store = msgspec.structs.replace(StoreConfig(ram_mib=1), **changes)
    return msgspec.structs.replace(config, store=store)


STORING = with_store(CONFIG)


class Taker:
    """The worker that gets the copies, in this process."""

    def __init__(self, config: KvConfig) -> None:
        self.base = np.zeros(GEOMETRY.end, np.uint8)
        self.service, self.address = make_service("d2", self.base, config)
        self.stored = Stored(self.service)
        self.holder = KvHolder(
            name="d2", incarnation="inc-d2", fingerprint="f", kv_address=self.address
        )

    @property
    def arena(self) -> Arena:
        kv_thread = self.service._kv_thread
        assert kv_thread is not None
        assert kv_thread.store_side is not None
        return kv_thread.store_side._arena

    def slots(self, count: int = len(SOURCE)) -> list[int]:
        return self.stored.table.find([BlockName(0, at) for at in hashes(count)], 0.0)

    def counts(self) -> KvCounts:
        status = self.service.status
        return status.counts if status is not None else KvCounts()

    def assert_right(self, count: int = len(SOURCE)) -> None:
        """Exactly these blocks, sealed, in the store; and nothing in the engine."""
        origin, copied = HostMemory(filled(1), GEOMETRY), self.arena.as_memory()
        for at, slot in enumerate(self.slots(count)):
            assert self.arena.holds(slot, BlockName(0, hashes()[at]))
            for layer in range(LAYERS):
                assert (copied.page(layer, slot) == origin.page(layer, SOURCE[at])).all()
        assert not self.base.any()


@pytest.fixture(params=["loaned", "sent"])
def taker(request: pytest.FixtureRequest) -> Iterator[Taker]:
    config = CONFIG if request.param == "loaned" else WIRE_ONLY
    taker = Taker(with_store(config))
    yield taker
    taker.service.stop()


@contextmanager
def offering(taker: Taker, config: KvConfig = STORING, fault: str = "") -> Iterator[Remote]:
    """A worker that stores the blocks, and to which connections stand both ways."""
    with remote("d1", config=config, fault=fault) as offerer:
        offerer.call("stored_save", hashes(), SOURCE)
        wait_for(lambda: linked(taker.service, offerer.address), LONG_S)
        wait_for(lambda: offerer.call("linked", taker.address), LONG_S)
        yield offerer


def offer(
    offerer: Remote, holder: KvHolder, wanted: list[bytes] | None = None, named: bool = True
) -> None:
    wanted = hashes() if wanted is None else wanted
    ours = names(len(wanted)) if named else b""
    offerer.call("offer_copies", KEY, holder, b"".join(wanted), ours, len(wanted))


def status_of(offerer: Remote) -> KvStatus | None:
    return cast("KvStatus | None", offerer.call("get_status"))


def assert_clean(taker: Taker, offerer: Remote) -> None:
    wait_for(lambda: offerer.call("stored_readers") == 0)
    wait_for(lambda: offerer.call("staging") == 0)
    wait_for(lambda: staging_used(taker.service) == 0)
    assert taker.stored.readers() == 0


def test_offered_blocks_are_found_at_the_other_worker(taker: Taker) -> None:
    with offering(taker) as offerer:
        offer(offerer, taker.holder)
        wait_for(lambda: len(taker.slots()) == len(SOURCE), LONG_S)
        taker.assert_right()
        assert_clean(taker, offerer)
        assert taker.service.drain() == [], "no engine hears of it"
        assert offerer.call("drain") == []
        wait_for(lambda: taker.counts().store_copied == len(SOURCE))
        assert (taker.counts().store_pulled, taker.counts().handoffs_in) == (0, 0)
        told = KvCheckpoint(
            request_id="r", attempt=1, holder="d2", blocks=len(SOURCE), held=len(SOURCE)
        )

        def is_told() -> bool:
            status = status_of(offerer)
            return status is not None and status.checkpoints == (told,)

        wait_for(is_told)


def test_what_is_there_is_not_copied_again(taker: Taker) -> None:
    with offering(taker) as offerer:
        offer(offerer, taker.holder)
        wait_for(lambda: taker.counts().store_copied == len(SOURCE), LONG_S)
        offerer.call("end_copies", KEY)
        offer(offerer, taker.holder)

        def is_told_again() -> bool:
            status = status_of(offerer)
            return status is not None and status.counts.store_offered == 2 * len(SOURCE)

        wait_for(is_told_again, LONG_S)
        assert taker.counts().store_copied == len(SOURCE)


def test_a_message_that_is_damaged_on_the_way_is_asked_for_again(taker: Taker) -> None:
    with offering(taker, fault="flip-first") as offerer:
        offer(offerer, taker.holder)
        wait_for(lambda: len(taker.slots()) == len(SOURCE), LONG_S)
        taker.assert_right()
        wait_for(lambda: taker.counts().digest_mismatches == 1)
        assert_clean(taker, offerer)


def test_what_stays_damaged_is_dropped_and_told_as_trouble_of_the_pair(taker: Taker) -> None:
    with offering(taker, fault="flip-all") as offerer:
        offer(offerer, taker.holder)
        (end, *_) = drained(taker.service, LONG_S)
        assert is_copy(end.request_id)
        assert (end.trouble, end.peer, end.side) == ("digest", "d1", "receive")
        wait_for(lambda: taker.counts().copies_failed > 0)
        assert taker.slots() == []
        offerer.call("end_copies", KEY)
        wait_for(lambda: len(taker.stored.table._free) == STORE_SLOTS, LONG_S)
        assert_clean(taker, offerer)


def test_a_block_that_the_offerer_lost_is_refused_and_skipped_in_the_end(taker: Taker) -> None:
    with offering(taker) as offerer:
        offer(offerer, taker.holder, [*hashes(3), bytes(32)])

        def is_skipped() -> bool:
            status = status_of(offerer)
            return status is not None and status.counts.offers_skipped == 4

        wait_for(is_skipped, LONG_S)
        assert taker.slots() == [], "nothing of an offer that is not what it says"
        assert_clean(taker, offerer)


def test_an_offerer_that_dies_amid_a_copy_leaves_no_slot_behind(taker: Taker) -> None:
    with offering(taker, fault="swallow") as offerer:
        offer(offerer, taker.holder)
        wait_for(lambda: len(taker.stored.table._free) == STORE_SLOTS - len(SOURCE), LONG_S)
        pid = offerer.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        offerer.process.join()
        wait_for(lambda: len(taker.stored.table._free) == STORE_SLOTS, LONG_S)
        wait_for(lambda: staging_used(taker.service) == 0, LONG_S)
        assert taker.slots() == []


def test_a_holder_that_is_killed_and_comes_back_as_another_gets_nothing() -> None:
    base = filled(1)
    offerer, _ = make_service("d1", base, STORING)
    stored = Stored(offerer)
    stored.save(hashes(), SOURCE)
    with remote("d2", config=STORING) as taker:
        holder = KvHolder(
            name="d2", incarnation="inc-older", fingerprint="f", kv_address=taker.address
        )
        wait_for(lambda: linked(offerer, taker.address), LONG_S)
        offerer.offer_copies(KEY, holder, b"".join(hashes()), names(), len(SOURCE))
        wait_for(
            lambda: offerer.status and offerer.status.counts.offers_skipped == len(SOURCE), LONG_S
        )
        assert stored.readers() == 0
    offerer.stop()


@pytest.mark.parametrize("config", [CONFIG, with_store(CONFIG, pull=False)])
def test_a_worker_without_a_store_for_others_takes_nothing(config: KvConfig) -> None:
    offerer, _ = make_service("d1", filled(1), STORING)
    stored = Stored(offerer)
    stored.save(hashes(), SOURCE)
    with remote("d2", config=config) as taker:
        holder = KvHolder(
            name="d2", incarnation="inc-d2", fingerprint="f", kv_address=taker.address
        )
        wait_for(lambda: linked(offerer, taker.address), LONG_S)
        offerer.offer_copies(KEY, holder, b"".join(hashes()), names(), len(SOURCE))
        wait_for(
            lambda: offerer.status and offerer.status.counts.offers_skipped == len(SOURCE), LONG_S
        )
    offerer.stop()


def test_a_worker_without_a_store_for_others_offers_nothing(taker: Taker) -> None:
    with remote("d1") as bare:
        offer(bare, taker.holder)
        bare.call("end_copies", KEY)
        assert bare.call("holds") == 0

"""Stores of workers whose KV is on cards: what others pull out of them, and get copied to them."""

from __future__ import annotations

import time

import numpy as np
import pytest

from common.config.kv import KvPath
from common.identity import pull_key
from common.kv.store.table import BlockName
from common.messages import KvHolder, KvSource
from tests.component.common.kv.device.pair import KEY, PATIENT_S, Pair, Worker, pair
from tests.component.common.kv.service_peer import linked, wait_for
from tests.component.common.kv.stored import Stored

BLOCKS = [7, 3, 30, 12, 13, 14, 39, 0, 21]
TARGET = [1, 0, 5, 17, 8, 30, 31, 2, 25]
HASHES = [bytes([at]) * 32 for at in range(1, len(BLOCKS) + 1)]
PATHS = [("device", ""), ("pinned", "tcp,self"), ("pinned", "tcp,sm,self")]


def source(made: Pair) -> KvSource:
    at = made.p.address
    return KvSource(name="p0", incarnation="inc-p0", fingerprint="f", kv_address=at, tokens=99)


def pull(made: Pair, wanted: list[bytes]) -> str:
    """To D's blocks, once D's engine is done with them. Returns the error."""
    blocks, seen = TARGET[: len(wanted)], list[np.ndarray]()
    old = made.d.blocks(blocks)
    made.d.card.engine.put(lambda: seen.append(made.d.blocks(blocks)))
    after = made.d.card.mark()
    made.d.service.pull(KEY, source(made), b"".join(wanted), blocks, after=after)
    end = made.d.end()
    assert (end.request_id, end.attempt, end.side) == (*pull_key(KEY), "receive")
    assert end.error or np.array_equal(seen[0], old)
    return end.error


@pytest.mark.parametrize(("path", "transports"), PATHS)
def test_stored_blocks_are_pulled_to_another_card(path: KvPath, transports: str) -> None:
    """What is in a store is in host memory, so it never goes from card to card at once."""
    with pair(path, transports=transports, store_mib=1) as made:
        stored, before = Stored(made.p.service), made.p.blocks(BLOCKS)
        stored.save(HASHES, BLOCKS)
        overwritten, _ = made.p.write_later(BLOCKS, 5)
        overwritten.run()
        assert pull(made, HASHES) == ""
        assert np.array_equal(made.d.blocks(TARGET), before)
        assert made.d.card_buffers() == made.p.card_buffers() == 0
        wait_for(lambda: stored.readers() == 0)


def test_a_damaged_block_is_not_pulled() -> None:
    with pair("device", store_mib=1) as made:
        stored = Stored(made.p.service)
        stored.save(HASHES, BLOCKS)
        stored.damage(HASHES[4])
        assert pull(made, HASHES) != ""
        wait_for(lambda: stored.held() == len(BLOCKS) - 1)


@pytest.mark.parametrize(("path", "transports"), PATHS)
def test_blocks_are_copied_to_another_store_and_from_there_to_its_card(
    path: KvPath, transports: str
) -> None:
    """What a stream leaves to the worker that goes on with it."""
    with pair(path, transports=transports, store_mib=1) as made:
        ours, theirs = Stored(made.p.service), Stored(made.d.service)
        before = made.p.blocks(BLOCKS)
        ours.save(HASHES, BLOCKS)
        made.p.service.connect(made.d.address)
        wait_for(lambda: linked(made.p.service, made.d.address), PATIENT_S)
        at = made.d.address
        holder = KvHolder(name="d0", incarnation="inc-d0", fingerprint="f", kv_address=at)
        made.p.service.offer_copies(KEY, holder, b"".join(HASHES), b"", len(HASHES))
        wait_for(lambda: theirs.held() == len(BLOCKS), PATIENT_S)
        names = [BlockName(0, one) for one in HASHES]
        slots = theirs.table.take(names, time.monotonic())
        theirs.load(slots, HASHES, TARGET)
        assert np.array_equal(made.d.blocks(TARGET), before)
        assert counts(made.d) == (len(BLOCKS), 0)


def counts(worker: Worker) -> tuple[int, int]:
    """Blocks that came out of its store, and those that were damaged."""
    kv_thread = worker.service._kv_thread
    assert kv_thread is not None
    counted = kv_thread._counters
    return counted.store_read, counted.store_damaged

"""Blocks of one worker's store in another's engine, over UCX between two processes: the right bytes
or none, and nothing left behind at either end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from common.config import KvConfig, StoreConfig
from common.errors import Code
from common.identity import attempt_of_pull, pull_key
from common.kv.layout import HostMemory
from common.kv.messages import KvDone
from common.kv.service import KvService
from common.kv.transport.ucx import DATA_TAG, Done, UcxLink
from common.messages import KvSource
from common.security.files import KvSecrets, write
from tests.component.common.kv.service_peer import (
    BLOCKS,
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
from tests.component.common.kv.stored import Stored

KEY = ("r", 1)
LONG_S = 30.0
SOURCE = [5, 6, 7, 20, 21, 3, *range(30, 45)]
TARGET = list(range(60, 60 - len(SOURCE), -1))


def hashes(count: int = len(SOURCE)) -> list[bytes]:
    return [bytes([at]) * 32 for at in range(1, count + 1)]


def with_store(config: KvConfig, **changes: object) -> KvConfig:
    store = msgspec.structs.replace(StoreConfig(ram_mib=1), **changes)
    return msgspec.structs.replace(config, store=store)


STORING = with_store(CONFIG)
PATIENT = with_store(msgspec.structs.replace(CONFIG, answer_ms=750.0))


@pytest.fixture
def base() -> np.ndarray:
    return np.zeros(GEOMETRY.end, np.uint8)


@pytest.fixture(params=["loaned", "sent"])
def puller(base: np.ndarray, request: pytest.FixtureRequest) -> Iterator[KvService]:
    config = CONFIG if request.param == "loaned" else WIRE_ONLY
    service, _ = make_service("p1", base, with_store(config))
    yield service
    service.stop()


@contextmanager
def holding(
    puller: KvService, saved: int = len(SOURCE), config: KvConfig = STORING, fault: str = ""
) -> Iterator[Remote]:
    """Another worker that stores so many blocks, and to which a connection stands: on a busy
    machine the first one may take longer than a pull tries."""
    ids = SOURCE if saved == len(SOURCE) else list(range(saved))
    with remote("p0", config=config, fault=fault) as holder:
        if saved:
            holder.call("stored_save", hashes(saved), ids)
        wait_for(lambda: linked(puller, holder.address), LONG_S)
        yield holder


@pytest.fixture
def holder(puller: KvService) -> Iterator[Remote]:
    with holding(puller) as holder:
        yield holder


def source_of(holder: Remote, **changes: str) -> KvSource:
    return msgspec.structs.replace(source_at(holder.address), **changes)


def source_at(address: str) -> KvSource:
    return KvSource(name="p0", incarnation="inc-p0", fingerprint="f", kv_address=address, tokens=99)


def pull(puller: KvService, source: KvSource, wanted: list[bytes], seconds: float = 20.0) -> KvDone:
    puller.pull(KEY, source, b"".join(wanted), TARGET[: len(wanted)])
    (end,) = drained(puller, seconds)
    assert (end.request_id, end.attempt, end.side) == (*pull_key(KEY), "receive")
    return end


def assert_pulled(base: np.ndarray, count: int) -> None:
    """Exactly these blocks, and no other byte."""
    held, origin = HostMemory(base, GEOMETRY), HostMemory(filled(1), GEOMETRY)
    for layer in range(LAYERS):
        for theirs, ours in zip(SOURCE[:count], TARGET, strict=False):
            assert (held.page(layer, ours) == origin.page(layer, theirs)).all()
        for other in set(range(BLOCKS)) - set(TARGET[:count]):
            assert not held.page(layer, other).any()


def assert_clean(puller: KvService, holder: Remote) -> None:
    wait_for(lambda: holder.call("stored_readers") == 0)
    wait_for(lambda: holder.call("staging") == 0)
    wait_for(lambda: holder.call("holds") == 0)
    wait_for(lambda: staging_used(puller) == 0)


def test_what_another_worker_stored_arrives_without_a_step_of_its_engine(
    puller: KvService, holder: Remote, base: np.ndarray
) -> None:
    end = pull(puller, source_of(holder), hashes())
    assert (end.error, end.report.blocks) == ("", len(SOURCE))
    assert_pulled(base, len(SOURCE))
    assert_clean(puller, holder)
    assert holder.call("drain") == [], "the engine of the holder hears nothing"
    wait_for(lambda: puller.status and puller.status.counts.store_pulled == len(SOURCE))
    assert puller.status is not None
    assert puller.status.counts.handoffs_in == 0

    def served() -> bool:
        status = holder.status()
        return status is not None and status.counts.store_served == len(SOURCE)

    wait_for(served)


def test_many_hashes_come_in_pieces(puller: KvService, base: np.ndarray) -> None:
    """And more than half of the store is not given to one."""
    with holding(puller, BLOCKS) as holder:
        puller.pull(KEY, source_of(holder), b"".join(hashes(54)), list(range(54)))
        (end,) = drained(puller, LONG_S)
        assert (end.error, end.report.blocks) == ("", 54)
        held, origin = HostMemory(base, GEOMETRY), HostMemory(filled(1), GEOMETRY)
        for block in range(54):
            assert (held.page(2, block) == origin.page(2, block)).all()
        puller.pull(("s", 1), source_of(holder), b"".join(hashes(60)), list(range(60)))
        (end,) = drained(puller, LONG_S)
        assert "half of its store" in end.message
        assert_clean(puller, holder)


def test_a_hint_that_is_wrong_or_stale_costs_a_look_up(
    puller: KvService, holder: Remote, base: np.ndarray
) -> None:
    unknown = bytes(32)
    end = pull(puller, source_of(holder), [*hashes(4), unknown, *hashes(6)[5:]])
    assert (end.error, end.held, end.trouble) == (Code.KV_TRANSFER_FAILED, 4, "")
    assert not base.any()
    assert_clean(puller, holder)
    puller.pull(KEY, source_of(holder), b"".join(hashes(4)), TARGET[:4], again=True)
    (end,) = drained(puller, LONG_S)
    assert (end.error, end.report.blocks) == ("", 4), "what it said that it has"
    assert attempt_of_pull((end.request_id, end.attempt)) == KEY
    assert_pulled(base, 4)
    assert_clean(puller, holder)
    holder.call("stored_expire")
    puller.pull(("s", 1), source_of(holder), b"".join(hashes(4)), TARGET[:4])
    (end,) = drained(puller, LONG_S)
    assert (end.error, end.held) == (Code.KV_TRANSFER_FAILED, 0)
    wait_for(lambda: puller.status and puller.status.counts.pulls_failed == 2)
    assert_clean(puller, holder)


def test_a_damaged_block_is_never_given_out_and_found_no_more(
    puller: KvService, holder: Remote
) -> None:
    holder.call("stored_damage", hashes()[3])
    end = pull(puller, source_of(holder), hashes())
    assert end.error == Code.KV_TRANSFER_FAILED
    assert_clean(puller, holder)
    assert holder.call("stored_held") == len(SOURCE) - 1
    puller.pull(("s", 1), source_of(holder), b"".join(hashes()), TARGET)
    (end,) = drained(puller, LONG_S)
    assert end.held == 3


def test_a_message_that_is_damaged_on_the_way_is_asked_for_again(
    puller: KvService, base: np.ndarray
) -> None:
    with holding(puller, fault="flip-first") as holder:
        end = pull(puller, source_of(holder), hashes())
        assert (end.error, end.report.refetches) == ("", 1)
        assert_pulled(base, len(SOURCE))
        assert_clean(puller, holder)


def test_a_holder_that_dies_amid_a_pull_fails_it_in_time(base: np.ndarray) -> None:
    service, _ = make_service("p1", base, PATIENT)
    with holding(service, config=PATIENT, fault="swallow") as holder:
        service.pull(KEY, source_of(holder), b"".join(hashes()), TARGET)
        wait_for(lambda: holder.call("asked") == 1)
        pid = holder.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        (end,) = drained(service, LONG_S)
        assert time.monotonic() - began < PATIENT.store.pull_ms / 1000
        assert (end.error, end.trouble) == (Code.KV_TRANSFER_FAILED, "transfer")
        assert staging_used(service) == 0
    service.stop()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_slots_that_a_lost_worker_wanted_are_let_go(
    monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    """A dead one by its connection, a silent one by the lease."""
    config = with_store(CONFIG, pull_ms=1_500.0)
    holder, address = make_service("p0", filled(1), config)
    stored = Stored(holder)
    stored.save(hashes(), SOURCE)
    sending = UcxLink.send

    def without_data(link: UcxLink, buffer: np.ndarray, tag: int, done: Done) -> None:
        if not tag & DATA_TAG:
            sending(link, buffer, tag, done)

    monkeypatch.setattr(UcxLink, "send", without_data)
    with remote("p1", config=config) as puller:
        wait_for(lambda: puller.call("linked", address), LONG_S)
        puller.call("pull", KEY, source_at(address), b"".join(hashes()), TARGET)
        wait_for(lambda: stored.readers() == len(SOURCE), LONG_S)
        pid = puller.process.pid
        assert pid is not None
        os.kill(pid, how)
        wait_for(lambda: stored.readers() == 0, LONG_S)
        puller.process.kill()
        puller.process.join()
    assert stored.held() == len(SOURCE)
    holder.stop()


def test_a_source_in_another_incarnation_or_of_another_fingerprint_is_not_asked(
    puller: KvService, holder: Remote
) -> None:
    end = pull(puller, source_of(holder, incarnation="inc-older"), hashes())
    assert "another incarnation" in end.message
    with pytest.raises(ValueError, match="another fingerprint"):
        puller.pull(KEY, source_of(holder, fingerprint="g"), b"".join(hashes()), TARGET)
    assert_clean(puller, holder)


def test_a_source_whose_fingerprint_is_not_what_the_router_says_refuses(
    puller: KvService,
) -> None:
    with remote("p0", fingerprint="g", config=STORING) as holder:
        holder.call("stored_save", hashes(), SOURCE)
        end = pull(puller, source_of(holder), hashes())
        assert "fingerprint" in end.message
        assert holder.call("stored_readers") == 0


def test_a_peer_that_does_not_prove_to_be_of_the_fleet_gets_nothing(
    tmp_path: Path, base: np.ndarray
) -> None:
    files = []
    for letter in "st":
        path = tmp_path / f"{letter}.json"
        write(path, KvSecrets(secrets=[(letter.encode() * 32).hex()]))
        files.append(str(path))
    holder, address = make_service("p0", filled(1), STORING, secrets_file=files[0])
    stored = Stored(holder)
    stored.save(hashes(), SOURCE)
    puller, _ = make_service("p1", base, STORING, secrets_file=files[1])
    end = pull(puller, source_at(address), hashes())
    assert end.error == Code.KV_TRANSFER_FAILED
    assert not base.any()
    assert stored.readers() == 0
    for service in (puller, holder):
        service.stop()


def test_a_worker_without_a_store_for_others_refuses_at_once(puller: KvService) -> None:
    with holding(puller, 0, CONFIG) as bare:
        began = time.monotonic()
        end = pull(puller, source_of(bare), hashes())
        assert "no store for others" in end.message
        assert time.monotonic() - began < 2.0
    off, lossy = with_store(CONFIG, pull=False), msgspec.structs.replace(STORING, compression="fp8")
    for at, config in enumerate((off, lossy)):
        with holding(puller, config=config) as holder:
            puller.pull((f"s{at}", 1), source_of(holder), b"".join(hashes()), TARGET)
            (end,) = drained(puller, LONG_S)
            assert "no store for others" in end.message
            assert holder.call("stored_readers") == 0

"""The KV service between two processes: right bytes, damage caught, nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest

from common.errors import BatonError, Code
from common.kv.checksum.header import HEADER_BYTES
from common.kv.kv_thread import CHECK_LINKS_S
from common.kv.layout import HostMemory
from common.kv.service import KvService
from common.kv.staging.loans import LOAN_LANE
from common.messages import KvHold
from tests.component.common.kv.service_peer import (
    BLOCKS,
    CONFIG,
    GEOMETRY,
    IDLE_WATCHED_S,
    LAYERS,
    PAGE,
    WIRE_ONLY,
    drained,
    filled,
    gathered,
    idle_turns,
    make_service,
    remote,
    staging_used,
    ticket,
    wait_for,
)

SOURCE = [5, 6, 7, 20, 21, 3, *range(30, 45)]
TARGET = list(range(60, 60 - len(SOURCE), -1))


@pytest.fixture
def base() -> np.ndarray:
    return np.zeros(GEOMETRY.end, np.uint8)


@pytest.fixture(params=["loaned", "sent"])
def decode(base: np.ndarray, request: pytest.FixtureRequest) -> Iterator[KvService]:
    """P loans every message, or sends it."""
    service, _ = make_service("d0", base, CONFIG if request.param == "loaned" else WIRE_ONLY)
    yield service
    service.stop()


def assert_moved(base: np.ndarray, source: list[int], target: list[int]) -> None:
    """Exactly these blocks, and no other byte."""
    held, origin = HostMemory(base, GEOMETRY), HostMemory(filled(1), GEOMETRY)
    for layer in range(LAYERS):
        for theirs, ours in zip(source, target, strict=True):
            assert (held.page(layer, ours) == origin.page(layer, theirs)).all()
        for other in set(range(BLOCKS)) - set(target):
            assert not held.page(layer, other).any()


def test_a_peer_that_is_stopped_in_a_handoff_is_given_up_long_before_the_load_timeout() -> None:
    patient = msgspec.structs.replace(CONFIG, load_timeout_ms=60_000.0, answer_ms=750.0)
    service, _ = make_service("d0", np.zeros(GEOMETRY.end, np.uint8), patient)
    with remote("p0") as prefill:
        warm = ticket("warm", prefill.address)
        service.fetch(warm, 0, [0])
        prefill.offer_all(warm, [0])
        drained(service)
        handed = ticket("r", prefill.address)
        prefill.call("offer", handed, len(SOURCE))
        pid = prefill.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        service.fetch(handed, 0, TARGET)
        (end,) = drained(service, 15.0)
        os.kill(pid, signal.SIGCONT)
        assert (end.error, end.trouble) == (Code.KV_TRANSFER_FAILED, "transfer")
        assert end.report.retries == 2
        assert staging_used(service) == 0
    service.stop()


def test_nothing_of_a_peer_that_died_stays_mapped() -> None:
    """Though no garbage is collected, as in an engine that has seldom reason to."""
    service, _ = make_service("d0", np.zeros(GEOMETRY.end, np.uint8))
    gc.disable()
    try:
        with remote("p0") as prefill:
            handed = ticket("r", prefill.address)
            prefill.offer_all(handed, SOURCE)
            service.fetch(handed, 0, TARGET)
            assert drained(service)[0].error == ""
            assert mapped_of_peers(), "what it lent was read where it lay"
            prefill.process.kill()
            prefill.process.join()
            wait_for(lambda: not mapped_of_peers(), 10.0)
    finally:
        gc.enable()
        service.stop()


def mapped_of_peers() -> list[str]:
    """Shared segments of other processes."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "baton-kv-staging" in line and " r--s " in line]


def test_a_peer_that_takes_its_time_to_compute_is_not_given_up(decode: KvService) -> None:
    """It is pinged several times meanwhile, and answers."""
    with remote("p0") as prefill:
        handed = ticket("r", prefill.address)
        prefill.call("offer", handed, len(SOURCE))
        decode.fetch(handed, 0, TARGET)
        decode.wait_end(2.0)
        assert decode.drain() == []
        prefill.call("progress", ("r", 0), SOURCE, len(SOURCE))
        (end,) = drained(decode)
        assert (end.error, end.report.retries) == ("", 0)


def test_blocks_arrive_as_they_left_and_both_sides_are_clean(
    decode: KvService, base: np.ndarray
) -> None:
    with remote("p0") as prefill:
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 2, TARGET[2:])
        prefill.offer_all(handed, SOURCE)
        (end,) = drained(decode)
        (sent,) = prefill.ends()
        assert (end.side, end.error) == ("receive", "")
        assert (sent.side, sent.error) == ("send", "")
        blocks = len(SOURCE) - 2
        assert end.report.payload_bytes == blocks * LAYERS * PAGE == sent.report.payload_bytes
        assert end.report.blocks == blocks
        assert end.report.wire_bytes == end.report.payload_bytes + 3 * HEADER_BYTES
        assert_moved(base, SOURCE[2:], TARGET[2:])
        assert prefill.call("holds") == 0
        wait_for(lambda: prefill.call("staging") == 0)
        assert staging_used(decode) == 0


def test_both_sides_report_holds_and_counts(decode: KvService) -> None:
    with remote("p0") as prefill:
        handed = ticket("r", prefill.address)
        prefill.call("offer", handed, len(SOURCE))
        decode.fetch(handed, 2, TARGET[2:])

        def holds() -> list[KvHold]:
            theirs, ours = prefill.status(), decode.status
            return [*(theirs.holds if theirs else ()), *(ours.holds if ours else ())]

        wait_for(lambda: len(holds()) == 2)
        at_p, at_d = holds()
        block_bytes = LAYERS * PAGE
        assert (at_p.request_id, at_p.peer, at_p.side) == ("r", "d0", "send")
        assert (at_p.blocks, at_p.bytes) == (len(SOURCE), len(SOURCE) * block_bytes)
        assert 0 < at_p.lease_left_ms < handed.lease_ms
        assert (at_d.request_id, at_d.peer, at_d.side) == ("r", "p0", "receive")
        assert at_d.bytes == (len(SOURCE) - 2) * block_bytes
        assert 0 < at_d.lease_left_ms < CONFIG.load_timeout_ms
        prefill.call("progress", ("r", 0), SOURCE, len(SOURCE))
        drained(decode)
        prefill.ends()
        wait_for(lambda: not holds())
        ours, theirs = decode.status, prefill.status()
        assert ours is not None
        assert theirs is not None
        assert (ours.counts.handoffs_in, ours.counts.bytes_in) == (1, at_d.bytes)
        assert (theirs.counts.handoffs_out, theirs.counts.bytes_out) == (1, at_d.bytes)


def test_damage_refusals_and_recomputation_are_counted(decode: KvService) -> None:
    with remote("p0", fault="flip-all") as prefill:
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        drained(decode)
        late = ticket("r", prefill.address)
        decode.fetch(late, 0, TARGET)
        drained(decode)
        wait_for(lambda: decode.status and decode.status.counts.recomputes == 2)
        assert decode.status is not None
        counts = decode.status.counts
        assert (counts.digest_mismatches, counts.refetches, counts.retries) == (2, 1, 0)
        assert (counts.handoffs_in, counts.bytes_in) == (0, 0)

        def refused() -> bool:
            theirs = prefill.status()
            return theirs is not None and theirs.counts.tickets_refused == 1

        wait_for(refused)
        theirs = prefill.status()
        assert theirs is not None
        assert theirs.counts.aborts == 1


def test_a_worker_that_holds_nothing_reports_what_it_refused() -> None:
    service, address = make_service("p0", filled(1))
    with remote("d0") as decode:
        service.release(("r", 0), "gone before D asked")
        decode.call("fetch", ticket("r", address), 0, TARGET)
        wait_for(lambda: service.status and service.status.counts.tickets_refused == 1)
    service.stop()


def test_chunks_leave_before_the_prompt_is_computed(decode: KvService, base: np.ndarray) -> None:
    with remote("p0") as prefill:
        handed = ticket("r", prefill.address)
        prefill.call("offer", handed, len(SOURCE))
        decode.fetch(handed, 0, TARGET)
        prefill.call("progress", ("r", 0), SOURCE[:17], 17)
        held = HostMemory(base, GEOMETRY)
        wait_for(lambda: held.page(LAYERS - 1, TARGET[15]).any())
        assert not held.page(0, TARGET[16]).any(), "the third message is not complete yet"
        assert decode.drain() == []
        prefill.call("progress", ("r", 0), SOURCE, len(SOURCE))
        assert drained(decode)[0].error == ""
        assert_moved(base, SOURCE, TARGET)


def test_both_sides_report_what_left_before_the_prefill_ended(base: np.ndarray) -> None:
    origin = filled(1)
    service, address = make_service("p0", origin)
    with remote("d0") as decode:
        handed = ticket("r", address)
        service.offer(handed, len(SOURCE))
        decode.call("fetch", handed, 0, TARGET)
        service.progress(("r", 0), SOURCE, 16)
        send_side = service._kv_thread.send_side  # type: ignore[union-attr]
        early = 16 * LAYERS * PAGE
        wait_for(lambda: send_side.sent_bytes(("r", 0)) == early)
        service.progress(("r", 0), SOURCE, len(SOURCE), ended=True)
        (sent,) = drained(service)
        (got,) = decode.ends()
        assert (sent.error, got.error) == ("", "")
        assert sent.report.early_bytes == got.report.early_bytes == early
        assert got.report.payload_bytes == len(SOURCE) * LAYERS * PAGE
    service.stop()


@pytest.mark.parametrize(("groups", "cut"), [(2, 2), (4, 4), (0, 2)])
def test_layers_arrive_while_later_ones_are_computed(
    base: np.ndarray, groups: int, cut: int
) -> None:
    config = msgspec.structs.replace(CONFIG, layer_groups=groups)
    decode, _ = make_service("d0", base, config)
    with remote("p0", config=config) as prefill:
        handed = ticket("r", prefill.address)
        prefill.call("offer", handed, len(SOURCE))
        decode.fetch(handed, 0, TARGET)
        prefill.call("layers_computed", ("r", 0), SOURCE, len(SOURCE), 2)
        held = HostMemory(base, GEOMETRY)
        for layer in (0, 1):
            wait_for(lambda layer=layer: held.page(layer, TARGET[-1]).any())  # type: ignore[misc]
        assert not any(held.page(layer, at).any() for layer in (2, 3) for at in TARGET)
        assert decode.drain() == []
        prefill.call("progress", ("r", 0), SOURCE, len(SOURCE))
        (end,) = drained(decode)
        assert (end.error, end.report.blocks) == ("", len(SOURCE))
        assert end.report.messages % cut == 0
        assert_moved(base, SOURCE, TARGET)
    decode.stop()


def test_many_handoffs_at_once_share_bounded_staging(decode: KvService, base: np.ndarray) -> None:
    with remote("p0") as prefill:
        tickets = [ticket(f"r{at}", prefill.address) for at in range(40)]
        for at, handed in enumerate(tickets):
            decode.fetch(handed, 0, [at])
            prefill.offer_all(handed, [63 - at])
        ends = gathered(decode.drain, 40)
        assert {end.error for end in ends} == {""}
        assert_moved(base, [63 - at for at in range(40)], list(range(40)))


def test_handoffs_that_wait_for_one_p_do_not_keep_d_from_another(base: np.ndarray) -> None:
    """Over the wire, where each open receive holds a staging buffer; there are seven."""
    service, _ = make_service("d0", base, WIRE_ONLY)
    with (
        remote("p0", config=WIRE_ONLY) as slow,
        remote("p1", config=WIRE_ONLY) as prompt,
    ):
        for number in range(3):
            waiting = ticket(f"slow{number}", slow.address)
            service.fetch(waiting, 0, list(range(32)))
            slow.call("offer", waiting, 32)
        wait_for(lambda: staging_used(service) >= 6)
        handed = msgspec.structs.replace(
            ticket("prompt", prompt.address), prefill="p1", prefill_incarnation="inc-p1"
        )
        service.fetch(handed, 0, list(range(32, 64)))
        start = time.monotonic()
        prompt.offer_all(handed, list(range(32)))
        (end,) = drained(service)
        assert (end.request_id, end.error) == ("prompt", "")
        assert time.monotonic() - start < WIRE_ONLY.load_timeout_ms / 1000 / 2
        assert_moved(base, list(range(32)), list(range(32, 64)))
    service.stop()


def test_two_handoffs_that_share_two_buffers_both_proceed(base: np.ndarray) -> None:
    """Each may hold one loaned buffer while it waits for the other."""
    config = msgspec.structs.replace(CONFIG, staging_mib=1)
    service, _ = make_service("d0", base, config)
    with remote("p0", config=config) as prefill:
        start = time.monotonic()
        for name, blocks in (("a", range(32)), ("b", range(32, 64))):
            handed = ticket(name, prefill.address)
            service.fetch(handed, 0, list(blocks))
            prefill.offer_all(handed, list(blocks))
        assert {end.error for end in gathered(service.drain, 2)} == {""}
        assert time.monotonic() - start < CONFIG.load_timeout_ms / 1000 / 2
        assert_moved(base, list(range(64)), list(range(64)))
        kv_thread = service._kv_thread
        assert kv_thread is not None
        assert LOAN_LANE in kv_thread.receive_side.connections.lanes()["p0"], "it was loaned"
        wait_for(lambda: prefill.call("staging") == 0)
    service.stop()


def test_damage_on_the_wire_is_caught_and_fetched_again(
    decode: KvService, base: np.ndarray
) -> None:
    with remote("p0", fault="flip-first") as prefill:
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        (end,) = drained(decode)
        assert (end.error, end.report.retries) == ("", 1)
        assert_moved(base, SOURCE, TARGET)


def test_damage_that_stays_fails_and_touches_no_block_but_those_it_asked_for(
    decode: KvService, base: np.ndarray
) -> None:
    with remote("p0", fault="flip-all") as prefill:
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        (end,) = drained(decode)
        assert end.error == Code.KV_TRANSFER_FAILED
        assert (end.trouble, end.peer, end.peer_incarnation) == ("digest", "p0", "inc-p0")
        others = [block for block in range(BLOCKS) if block not in TARGET]
        assert not base.reshape(LAYERS, BLOCKS, PAGE)[:, others].any()
        assert prefill.ends()[0].error == Code.CANCELLED
        wait_for(lambda: staging_used(decode) == 0 and prefill.call("staging") == 0)


def test_a_failed_receive_is_tried_again_on_a_new_connection(
    decode: KvService, base: np.ndarray
) -> None:
    with remote("p0", fault="oversize") as prefill:
        decode.connect(prefill.address)
        kv_thread = decode._kv_thread
        assert kv_thread is not None
        connections = kv_thread.receive_side.connections._connections
        wait_for(
            lambda: prefill.address in connections and connections[prefill.address].channel.peer
        )
        first = connections[prefill.address].channel
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        (end,) = drained(decode)
        assert (end.error, end.report.retries, end.report.refetches) == ("", 1, 0)
        assert connections[prefill.address].channel is not first
        assert first.closed
        assert_moved(base, SOURCE, TARGET)
        wait_for(lambda: staging_used(decode) == 0 and prefill.call("staging") == 0)


def test_killing_p_fails_its_handoffs_soon_and_another_p_still_serves(
    decode: KvService, base: np.ndarray
) -> None:
    with remote("p0") as prefill:
        handed = ticket("r", prefill.address)
        prefill.call("offer", handed, len(SOURCE))
        prefill.call("progress", ("r", 0), SOURCE[:9], 9)
        decode.fetch(handed, 0, TARGET)
        wait_for(base.any)
        pid = prefill.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        (end,) = drained(decode, 4.5)
        assert end.error == Code.KV_TRANSFER_FAILED
        wait_for(lambda: staging_used(decode) == 0)
    base[:] = 0
    with remote("p0") as prefill:
        handed = ticket("r2", prefill.address)
        decode.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        assert drained(decode)[0].error == ""
        assert_moved(base, SOURCE, TARGET)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_d_that_dies_or_stops_frees_p_long_before_its_lease(
    base: np.ndarray, how: signal.Signals
) -> None:
    """When P has sent all that it has and waits for its engine to compute the rest."""
    config = msgspec.structs.replace(CONFIG, lease_ms=60_000.0, answer_ms=750.0)
    service, address = make_service("p0", base, config)
    with remote("d0") as decode:
        handed = ticket("r", address, lease_ms=60_000.0)
        service.offer(handed, len(SOURCE))
        service.progress(("r", 0), SOURCE[:9], 9)
        decode.call("fetch", handed, 0, TARGET)
        kv_thread, pid = service._kv_thread, decode.process.pid
        assert kv_thread is not None
        assert pid is not None
        wait_for(lambda: kv_thread.send_side.sent_bytes(("r", 0)) > 0)
        wait_for(lambda: staging_used(service) == 0)
        os.kill(pid, how)
        start = time.monotonic()
        (end,) = drained(service)
        assert end.error == Code.KV_TRANSFER_FAILED
        assert time.monotonic() - start < 4.0
        wait_for(lambda: staging_used(service) == 0)
        decode.process.kill()  # nobody waits for one that is stopped to end by itself
        decode.process.join()
    service.stop()


@pytest.mark.parametrize("side", ["p", "d"])
@pytest.mark.parametrize("phase", ["early", "parked", "mid"])
def test_an_abort_frees_both_sides_long_before_any_timer(
    decode: KvService, base: np.ndarray, phase: str, side: str
) -> None:
    """Lease 5 s, load timeout 4 s: what is free within 2 s was freed by the abort."""
    with remote("p0") as prefill:
        warm = ticket("warm", prefill.address)
        decode.fetch(warm, 0, [0])
        prefill.offer_all(warm, [0])
        assert drained(decode)[0].error == ""
        prefill.ends()
        handed = ticket("r", prefill.address)
        if phase != "parked":
            prefill.call("offer", handed, len(SOURCE))
        if phase == "mid":
            prefill.call("progress", ("r", 0), SOURCE[:9], 9)
        before = base.copy()
        decode.fetch(handed, 0, TARGET)
        if phase == "mid":
            wait_for(lambda: not np.array_equal(base, before))
        wait_for(lambda: prefill.call("asked") == 1)
        start = time.monotonic()
        if side == "d":
            decode.release(("r", 0), "client gone")
        else:
            prefill.call("release", ("r", 0), "client gone")
        (end,) = drained(decode)
        assert end.error in (Code.CANCELLED, Code.KV_TRANSFER_FAILED)
        wait_for(lambda: prefill.call("holds") == 0)
        wait_for(lambda: staging_used(decode) == 0 and prefill.call("staging") == 0)
        assert time.monotonic() - start < 2.0


def test_p_that_never_answers_costs_the_link_not_the_staging(decode: KvService) -> None:
    with remote("p0", fault="swallow") as prefill:
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        assert drained(decode)[0].error == Code.KV_TRANSFER_FAILED
        kv_thread = decode._kv_thread
        assert kv_thread is not None
        assert len(kv_thread.receive_side) > 0, "receives that P owes an answer"
        wait_for(lambda: len(kv_thread.receive_side) == 0 and staging_used(decode) == 0, 8.0)


def test_another_fingerprint_is_refused_at_once(decode: KvService) -> None:
    with remote("p0", fingerprint="other") as prefill:
        handed = ticket("r", prefill.address)
        start = time.monotonic()
        decode.fetch(handed, 0, TARGET)
        (end,) = drained(decode)
        assert end.error == Code.KV_TRANSFER_FAILED
        assert "fingerprint" in end.message
        assert time.monotonic() - start < 2.0


def test_an_older_incarnation_is_never_asked(decode: KvService) -> None:
    with remote("p0") as prefill:
        handed = msgspec.structs.replace(
            ticket("r", prefill.address), prefill_incarnation="inc-before"
        )
        prefill.offer_all(handed, SOURCE)
        decode.fetch(handed, 0, TARGET)
        (end,) = drained(decode)
        assert end.error == Code.KV_TRANSFER_FAILED
        assert "incarnation" in end.message


def test_an_address_without_a_listener_ends_the_handoff(decode: KvService) -> None:
    decode.fetch(ticket("r", "127.0.0.1:9"), 0, TARGET)
    start = time.monotonic()
    (end,) = drained(decode, 6.0)
    assert (end.error, end.trouble) == (Code.KV_TRANSFER_FAILED, "transfer")
    assert time.monotonic() - start < 5.0


def test_a_connection_made_ahead_is_used_and_one_that_fails_does_no_harm(
    decode: KvService,
) -> None:
    with remote("p0") as prefill:
        decode.connect("127.0.0.1:9")
        decode.connect("nonsense")
        decode.connect(prefill.address)
        kv_thread = decode._kv_thread
        assert kv_thread is not None
        connection = kv_thread.receive_side.connections._connections
        wait_for(lambda: prefill.address in connection and connection[prefill.address].channel.peer)
        channel = connection[prefill.address].channel
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 0, [1])
        prefill.offer_all(handed, [1])
        assert drained(decode)[0].error == ""
        assert connection[prefill.address].channel is channel
        wait_for(lambda: len(kv_thread.receive_side) == 0)


def test_open_connections_are_reported_without_a_handoff(decode: KvService) -> None:
    def linked() -> tuple[str, ...]:
        return decode.status.linked if decode.status is not None else ()

    with remote("p0") as prefill, remote("p1") as other:
        decode.connect(prefill.address)
        decode.connect(other.address)
        wait_for(lambda: set(linked()) == {prefill.address, other.address})
        prefill.process.kill()
        wait_for(lambda: linked() == (other.address,))


def test_progress_older_than_a_withdrawal_is_ignored(base: np.ndarray) -> None:
    """Preemption: progress reported before the engine took its blocks back may arrive after it."""
    service, _ = make_service("p0", base)
    service.offer(ticket("r", "unused:1"), 4)
    service.progress(("r", 0), [1, 2, 3, 4], 2)
    kv_thread = service._kv_thread
    assert kv_thread is not None
    wait_for(lambda: ("r", 0) in kv_thread.send_side._prompts)
    wait_for(lambda: kv_thread.send_side._prompts[("r", 0)].blocks == [1, 2, 3, 4])
    service.withdraw(("r", 0))
    assert kv_thread.send_side._prompts[("r", 0)].blocks == []
    service._call(lambda late: late.send_side.progress(("r", 0), [1, 2, 3, 4], 4, 0))
    called = threading.Event()
    service._call(lambda _: called.set())
    assert called.wait(5)
    assert kv_thread.send_side._prompts[("r", 0)].blocks == []
    service.progress(("r", 0), [9], 1)
    wait_for(lambda: kv_thread.send_side._prompts[("r", 0)].blocks == [9])
    sender = kv_thread.send_side._tickets.sender(("r", 0))
    assert sender is not None
    wait_for(lambda: sender.computed == 1)
    service.stop()


def test_two_idle_services_sleep(decode: KvService) -> None:
    """Each looks once a second at who is connected, and that is all."""
    with remote("p0") as prefill:
        handed = ticket("r", prefill.address)
        decode.fetch(handed, 0, [1])
        prefill.offer_all(handed, [1])
        drained(decode)
        prefill.ends()
        looks = IDLE_WATCHED_S / CHECK_LINKS_S + 1
        assert cast("int", prefill.call("idle_turns")) <= looks
        assert idle_turns(decode) <= looks


def test_a_thread_that_does_not_start_is_reported_with_its_stack(
    base: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def stuck(*_: object, **__: object) -> None:
        go_on.wait()

    monkeypatch.setattr("common.kv.service.KvThread", stuck)
    monkeypatch.setattr("common.kv.service.START_S", 0.2)
    with pytest.raises(BatonError, match=r"test_service\.py:\d+ stuck"):
        make_service("d0", base)
    go_on.set()


def test_a_stream_that_is_over_is_no_handoff_that_was_given_up(decode: KvService) -> None:
    """Its engine offers its blocks, and its daemon has said before that nobody wants them."""
    decode.release(("r", 1), "its client left")
    decode.keep(("r", 1), SOURCE)
    (end,) = drained(decode)
    assert (end.attempt, end.side, end.error) == (1, "send", Code.CANCELLED)
    wait_for(lambda: decode.status is not None)
    assert decode.status is not None
    assert decode.status.counts.aborts == 0


def test_a_stream_goes_from_one_d_to_another(decode: KvService, base: np.ndarray) -> None:
    with remote("p0") as left:
        left.call("keep", ("r", 0), SOURCE)
        moved = msgspec.structs.replace(ticket("r", left.address), attempt=1)
        left.call("hand_over", moved, 0)
        decode.fetch(moved, 0, TARGET)
        (end,) = drained(decode)
        (sent,) = left.ends()
        assert (end.attempt, end.error, end.report.complete) == (1, "", True)
        assert (sent.attempt, sent.error) == (0, ""), "the attempt that its engine knows"
    assert_moved(base, SOURCE, TARGET)

"""Handoffs between workers that split their heads over unlike numbers of ranks: right heads on
every rank, verified, one end on each, and nothing held when one part fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from common.config import KvConfig
from common.errors import Code
from common.kv.canonical import CanonicalForm, CanonicalMemory, HeadMajorPage
from common.kv.handoff.parts import Rank
from common.kv.kv_thread import KvThread
from common.kv.layout import Geometry, HostMemory, KvMemory
from common.kv.messages import KvDone, KvForm, KvStatus
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.messages import Ticket
from common.net.kv_address import joined_addresses, parts_between, rank_addresses
from tests.component.common.kv.service_peer import CONFIG, WIRE_ONLY, drained, wait_for
from tests.rigs import messages

LAYERS, TOKENS, HEADS, ITEMS = 4, 1024, 4, 32
PATIENT_S = 30.0
"""A busy machine starves this process, which has all services, for seconds."""
LOANED, SENT = (
    msgspec.structs.replace(config, load_timeout_ms=PATIENT_S * 1000)
    for config in (CONFIG, WIRE_ONLY)
)
HEAD_BYTES = 16 * 2 * ITEMS * 4
"""One head of a canonical block."""
SEQUENCE = list(range(3, 40))
"""Canonical blocks of the prompt, by their ids in either memory."""
KEY = ("r", 0)


LayOut = Callable[[NDArray[np.uint8], int, int], tuple[KvMemory, CanonicalForm]]
"""The memory of an engine and the same in the canonical form, of random bytes that are enough, for
so many heads and blocks of so many tokens."""


def in_host(base: NDArray[np.uint8], heads: int, tokens: int) -> tuple[KvMemory, CanonicalForm]:
    page = HeadMajorPage(heads, tokens, ITEMS, 4)
    memory = HostMemory(base, geometry_of(page.page_bytes, tokens))
    return memory, CanonicalMemory(memory, page)


def geometry_of(page_bytes: int, tokens: int) -> Geometry:
    blocks = TOKENS // tokens
    return Geometry(LAYERS, blocks, page_bytes, page_bytes * blocks, page_bytes)


class Worker:
    """A service for each rank, over memory of blocks of so many tokens."""

    def __init__(
        self, name: str, ranks: int, tokens: int, config: KvConfig, lay_out: LayOut = in_host
    ) -> None:
        heads = HEADS // ranks
        self.memories: list[CanonicalForm] = []
        self.services: list[KvService] = []
        for number in range(ranks):
            random = np.random.default_rng(ord(name[0]) + number)
            size = LAYERS * TOKENS * heads * 2 * ITEMS * 4
            memory, form = lay_out(random.integers(0, 256, size, np.uint8), heads, tokens)
            self.memories.append(form)
            fingerprint, rank = f"{name}, {ranks} and {tokens}", Rank(number, ranks)
            named = name, f"inc-{name}", fingerprint
            identity = WorkerIdentity(*named, rank, form=KvForm("m"))
            self.services.append(KvService(identity, config, memory, canonical={"": form}))
        self.address = joined_addresses([service.start() for service in self.services])

    def heads(self, block_ids: list[int]) -> NDArray[np.uint8]:
        """`[layer][block][head][byte]` over all ranks."""
        found = []
        for memory in self.memories:
            wire = np.zeros(len(block_ids) * memory.geometry.block_bytes, np.uint8)
            memory.gather(block_ids, wire)
            found.append(wire.reshape(LAYERS, len(block_ids), memory.heads, HEAD_BYTES))
        return np.concatenate(found, axis=2)

    def ends(self) -> list[KvDone]:
        """One of each rank."""
        ends = [drained(service, PATIENT_S) for service in self.services]
        assert [len(one) for one in ends] == [1] * len(ends)
        return [end for (end,) in ends]

    def hold_nothing(self) -> None:
        for service in self.services:
            wait_for(lambda service=service: holds_nothing(service.status), PATIENT_S)  # type: ignore[misc]


def holds_nothing(status: KvStatus | None) -> bool:
    return status is not None and not status.holds_total


@contextmanager
def pair(
    ours: int,
    theirs: int,
    tokens: tuple[int, int] = (32, 32),
    config: KvConfig = LOANED,
    lay_outs: tuple[LayOut, LayOut] = (in_host, in_host),
) -> Iterator[tuple[Worker, Worker]]:
    prefill = Worker("p0", ours, tokens[0], config, lay_outs[0])
    decode = Worker("d0", theirs, tokens[1], config, lay_outs[1])
    try:
        yield prefill, decode
    finally:
        for service in (*decode.services, *prefill.services):
            service.stop()


def ticket(prefill: Worker, decode: Worker, attempt: int = 0, parts: int = 0) -> Ticket:
    return messages.ticket(
        attempt=attempt,
        secret=os.urandom(16),
        kv_address=prefill.address,
        lease_ms=PATIENT_S * 1000,
        canonical=True,
        parts=parts or parts_between(prefill.address, decode.address),
    )


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1), (1, 4), (4, 2), (2, 2)])
@pytest.mark.parametrize("config", [LOANED, SENT], ids=["loaned", "sent"])
def test_each_head_comes_to_the_rank_that_has_it(ours: int, theirs: int, config: KvConfig) -> None:
    tokens = (32, 128) if ours <= theirs else (64, 16)
    with pair(ours, theirs, tokens, config) as (prefill, decode):
        others = [*range(5), *range(40, 64)]
        before, given = decode.heads(others), ticket(prefill, decode)
        for service in decode.services:
            service.connect(prefill.address)
            service.fetch(given, 2, SEQUENCE[2:])
        for service in prefill.services:
            service.offer(given, len(SEQUENCE))
            service.progress(KEY, SEQUENCE[:20], 20)
            service.progress(KEY, SEQUENCE, len(SEQUENCE), ended=True)
        received, sent = decode.ends(), prefill.ends()
        payload = 35 * LAYERS * HEADS * HEAD_BYTES
        for ends in (received, sent):
            assert {(end.error, end.request_id, end.attempt) for end in ends} == {("", *KEY)}
            assert sum(end.report.payload_bytes for end in ends) == payload
        assert all((end.report.blocks, end.report.complete) == (35, True) for end in received)
        assert (decode.heads(SEQUENCE[2:]) == prefill.heads(SEQUENCE[2:])).all()
        assert (decode.heads(others) == before).all(), "other blocks are untouched"
        prefill.hold_nothing()
        decode.hold_nothing()
        again = ticket(prefill, decode, attempt=1)
        for service in decode.services:
            service.fetch(again, 0, [41, 42])
        for service in prefill.services:
            service.offer(again, 2)
            service.progress(("r", 1), [51, 52], 2)
        assert {end.error for end in decode.ends()} == {""}
        assert (decode.heads([41, 42]) == prefill.heads([51, 52])).all()


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1)])
def test_what_leaves_before_the_prefill_ends_is_told_once(ours: int, theirs: int) -> None:
    grouped = msgspec.structs.replace(SENT, layer_groups=4)
    with pair(ours, theirs, config=grouped) as (prefill, decode):
        given = ticket(prefill, decode)
        for service in decode.services:
            service.fetch(given, 0, SEQUENCE)
        for service in prefill.services:
            service.offer(given, len(SEQUENCE))
            service.layers_computed(KEY, SEQUENCE, len(SEQUENCE), 2)
            wait_for(lambda service=service: sent_bytes(service) > 0, PATIENT_S)  # type: ignore[misc]
            service.progress(KEY, SEQUENCE, len(SEQUENCE), ended=True)
        early, sent = decode.ends(), prefill.ends()
        at_p = sum(end.report.early_bytes for end in sent)
        at_d = sum(end.report.early_bytes for end in early)
        assert 0 < at_p < len(SEQUENCE) * LAYERS * HEADS * HEAD_BYTES
        assert 0 <= at_p - at_d < HEADS, "but for the rest of a division"


def sent_bytes(service: KvService) -> int:
    assert service._kv_thread is not None
    return service._kv_thread.send_side.sent_bytes(KEY)


def test_layers_leave_in_groups_in_every_part() -> None:
    grouped = msgspec.structs.replace(LOANED, layer_groups=4)
    with pair(1, 2, config=grouped) as (prefill, decode):
        given = ticket(prefill, decode)
        for service in decode.services:
            service.fetch(given, 0, SEQUENCE)
        (p,) = prefill.services
        p.offer(given, len(SEQUENCE))
        for layers in range(1, LAYERS):
            p.layers_computed(KEY, SEQUENCE, len(SEQUENCE), layers)
        p.progress(KEY, SEQUENCE, len(SEQUENCE), ended=True)
        assert [(end.error, end.report.messages) for end in decode.ends()] == [("", 4)] * 2
        assert (decode.heads(SEQUENCE) == prefill.heads(SEQUENCE)).all()


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1)])
def test_a_kept_stream_goes_to_other_ranks(ours: int, theirs: int) -> None:
    """The engine names its own blocks, of 32 tokens; the other worker asks for canonical ones."""
    with pair(ours, theirs, (32, 16)) as (left, decode):
        kept = list(range(1, 20))
        moved = ticket(left, decode, attempt=1)
        for service in left.services:
            service.keep(KEY, kept)
            service.hand_over(moved, 0)
        wanted = list(range(2 * kept[0], 2 * kept[-1] + 1))
        for service in decode.services:
            service.fetch(moved, 0, wanted)
        assert {end.error for end in decode.ends()} == {""}
        assert {(end.error, end.attempt) for end in left.ends()} == {("", 0)}
        assert (decode.heads(wanted) == left.heads(wanted)).all()
        left.hold_nothing()


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1)])
def test_a_release_ends_all_parts(ours: int, theirs: int) -> None:
    with pair(ours, theirs) as (prefill, decode):
        given = ticket(prefill, decode)
        for service in decode.services:
            service.fetch(given, 0, SEQUENCE)
        for service in prefill.services:
            service.offer(given, len(SEQUENCE))
        for service in (*decode.services, *prefill.services):
            wait_for(lambda service=service: has_hold(service.status), PATIENT_S)  # type: ignore[misc]
        release_at_once(*decode.services, *prefill.services)
        assert {end.error for end in (*decode.ends(), *prefill.ends())} == {Code.CANCELLED}
        prefill.hold_nothing()
        decode.hold_nothing()


def release_at_once(*services: KvService) -> None:
    """None hears of the release of another before its own."""
    all_there = threading.Barrier(len(services), timeout=PATIENT_S)

    def release(kv: KvThread) -> None:
        all_there.wait()
        kv.release(KEY, "enough")

    for service in services:
        service._call(release)


def has_hold(status: KvStatus | None) -> bool:
    """One of the whole handoff, whose parts are the KV plane's own business."""
    if status is None or not status.holds:
        return False
    (hold,) = status.holds
    return (hold.request_id, hold.attempt) == KEY and hold.blocks == len(SEQUENCE)


def test_a_handoff_ends_with_the_part_that_fails() -> None:
    """One rank of P has released it. The other part, of which nothing is computed, is given up."""
    with pair(2, 1) as (prefill, decode):
        given = ticket(prefill, decode)
        prefill.services[1].release(KEY, "gone")
        prefill.services[0].offer(given, len(SEQUENCE))
        decode.services[0].fetch(given, 0, SEQUENCE)
        (end,) = decode.ends()
        assert (end.error, end.message) == (
            Code.KV_TRANSFER_FAILED,
            "p0 refused the KV: the ticket has ended",
        )
        decode.hold_nothing()


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1), (4, 2)])
def test_each_rank_connects_beforehand_to_those_it_will_fetch_from(ours: int, theirs: int) -> None:
    with pair(ours, theirs) as (prefill, decode):
        addresses, count = rank_addresses(prefill.address), max(ours // theirs, 1)
        for number, service in enumerate(decode.services):
            service.connect(prefill.address)
            first = number * ours // theirs
            wanted = set(addresses[first : first + count])
            wait_for(lambda: linked(service) == wanted, PATIENT_S)  # noqa: B023 - called here


def linked(service: KvService) -> set[str]:
    assert service._kv_thread is not None
    return set(service._kv_thread.receive_side.connections.open_addresses())


def test_a_ticket_is_fetched_once_at_a_time() -> None:
    with pair(1, 2) as (prefill, decode):
        given, (p,), (d, other) = ticket(prefill, decode), prefill.services, decode.services
        d.fetch(given, 0, SEQUENCE)
        d.fetch(given, 0, SEQUENCE)
        (refused,) = drained(d, PATIENT_S)
        assert (refused.error, refused.request_id) == (Code.DUPLICATE_REQUEST, "r")
        other.fetch(given, 0, SEQUENCE)
        p.offer(given, len(SEQUENCE))
        p.progress(KEY, SEQUENCE, len(SEQUENCE))
        assert {end.error for end in decode.ends()} == {""}
        assert (decode.heads(SEQUENCE) == prefill.heads(SEQUENCE)).all()


def test_an_attempt_that_was_released_before_is_not_offered_in_parts() -> None:
    with pair(1, 2) as (prefill, decode):
        (p,) = prefill.services
        p.release(KEY, "aborted")
        p.offer(ticket(prefill, decode), len(SEQUENCE))
        (end,) = prefill.ends()
        assert (end.error, end.message) == (Code.CANCELLED, "the ticket has ended already")
        prefill.hold_nothing()


def test_a_ticket_in_parts_that_cannot_be_cut_so_ends_with_a_reason() -> None:
    with pair(2, 1) as (prefill, decode):
        wrong = ticket(prefill, decode, parts=3)
        for service in prefill.services:
            service.offer(wrong, len(SEQUENCE))
        (d,) = decode.services
        d.fetch(wrong, 0, SEQUENCE)
        messages = {end.message for end in prefill.ends()}
        assert messages == {"3 parts of KV for the 2 ranks of this worker"}
        (end,) = decode.ends()
        assert end.message == "this engine's KV has no canonical form in 3 parts"

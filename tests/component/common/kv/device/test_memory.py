"""Handoffs of KV that is on cards which run as late as they may: right bytes by every path, and no
block read or written before its time or after it."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest
import torch

from common.config.kv import KvPath
from common.errors import BatonError
from common.kv.device.kernels import PageCopy
from common.kv.layout import Mark
from common.kv.staging.loans import LOAN_LANE
from common.messages import Ticket
from tests.component.common.kv.device.pair import BLOCKS, KEY, PATIENT_S, Pair, Worker, pair
from tests.component.common.kv.service_peer import wait_for
from tests.unit.common.kv.device.late_card import LateCard, LateMark, LateStream

SEQUENCE = [7, 3, 30, 12, 13, 14, 39, 0, 21]
TARGET = [1, 0, 5, 17, 8, 30, 31, 2, 25]
PATHS = [("device", ""), ("pinned", "tcp,self"), ("pinned", "tcp,sm,self")]
"""From card to card, through page-locked memory and a wire, and loaned."""


def hand_over(made: Pair, ticket: Ticket) -> None:
    made.p.service.offer(ticket, len(SEQUENCE))
    made.d.service.fetch(ticket, 0, TARGET)


@pytest.mark.parametrize(("path", "transports"), PATHS)
def test_the_blocks_of_a_late_engine_arrive_by_every_path(path: KvPath, transports: str) -> None:
    with pair(path, transports=transports) as made:
        untouched = [block for block in range(BLOCKS) if block not in TARGET]
        before = made.d.blocks(untouched)
        hand_over(made, made.ticket())
        for computed in (4, 9):
            after, _ = made.p.write_later(SEQUENCE[computed - 4 : computed], computed)
            made.p.service.progress(KEY, SEQUENCE[:computed], computed, after=after)
        sent, received = made.p.end(), made.d.end()
        assert (sent.error, received.error) == ("", "")
        assert np.array_equal(made.d.blocks(TARGET), made.p.blocks(SEQUENCE))
        assert np.array_equal(made.d.blocks(untouched), before)
        assert (made.d.card_buffers() > 0) == (path == "device")
        assert received.report.payload_bytes == made.p.blocks(SEQUENCE).nbytes


@pytest.mark.parametrize("path", ["device", "pinned"])
def test_a_message_may_be_larger_than_those_before(path: KvPath) -> None:
    with pair(path) as made:
        for attempt, blocks in enumerate((1, 3)):
            ticket = msgspec.structs.replace(made.ticket(), attempt=attempt)
            made.p.service.offer(ticket, blocks)
            made.d.service.fetch(ticket, 0, TARGET[:blocks])
            made.p.service.progress((KEY[0], attempt), SEQUENCE[:blocks], blocks)
            assert (made.p.end().error, made.d.end().error) == ("", "")
            there = made.d.blocks(TARGET[:blocks])
            assert np.array_equal(there, made.p.blocks(SEQUENCE[:blocks]))


def test_layers_leave_when_their_marks_have_passed() -> None:
    """The last layer is not computed before the first has arrived."""
    with pair("device", layer_groups=4) as made:
        hand_over(made, made.ticket())
        for layers in (1, 2, 3):
            after, due = made.p.write_later(SEQUENCE, layers)
            made.p.service.layers_computed(KEY, SEQUENCE, len(SEQUENCE), layers, after)
            wait_for(partial(arrived, made, layers - 1, due), PATIENT_S)
        after, last = made.p.write_later(SEQUENCE, 4)
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE), ended=True, after=after)
        assert made.d.end().error == ""
        assert arrived(made, 3, last)


def arrived(made: Pair, layer: int, due: np.ndarray) -> bool:
    return bool(np.array_equal(made.d.blocks(TARGET)[layer], due[layer]))


@pytest.mark.parametrize("path", ["device", "pinned"])
def test_blocks_are_written_after_what_the_engine_still_does_with_them(path: KvPath) -> None:
    with pair(path) as made:
        old, seen = made.d.blocks(TARGET), list[np.ndarray]()
        made.d.card.engine.put(lambda: seen.append(made.d.blocks(TARGET)))
        ticket = made.ticket()
        made.p.service.offer(ticket, len(SEQUENCE))
        made.d.service.fetch(ticket, 0, TARGET, after=made.d.card.mark())
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE))
        assert made.d.end().error == ""
        assert np.array_equal(seen[0], old)


@pytest.mark.parametrize(("path", "transports"), PATHS)
def test_blocks_that_the_engine_takes_back_are_overwritten_after_copies_that_began(
    path: KvPath, transports: str
) -> None:
    with pair(path, transports=transports) as made:
        sequence, target = SEQUENCE[:3], TARGET[:3]  # one message
        old, ticket = made.p.blocks(sequence), made.ticket()
        made.p.card.hold()
        made.p.service.offer(ticket, len(sequence))
        made.d.service.fetch(ticket, 0, target)
        made.p.service.progress(KEY, sequence, len(sequence))
        wait_for(made.p.copying, PATIENT_S)
        made.p.service.withdraw(KEY)
        overwritten, due = made.p.write_later(sequence, 99)
        overwritten.run()
        made.p.card.let_go()
        assert made.d.end().error == ""
        assert np.array_equal(made.d.blocks(target), old)
        assert np.array_equal(made.p.blocks(sequence), due)


@pytest.mark.parametrize("path", ["device", "pinned"])
def test_an_aborted_send_ends_when_nothing_reads_its_blocks_any_more(path: KvPath) -> None:
    with pair(path) as made:
        made.p.card.hold()
        hand_over(made, made.ticket())
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE))
        wait_for(made.p.copying, PATIENT_S)
        made.p.service.release(KEY, "gone")
        assert made.d.end().error, "P has told it, and could have ended"
        assert made.p.service.drain() == []
        made.p.card.let_go()
        assert made.p.end().error


@pytest.mark.parametrize(("path", "transports"), PATHS)
def test_an_aborted_fetch_ends_when_nothing_writes_to_its_blocks_any_more(
    path: KvPath, transports: str
) -> None:
    with pair(path, transports=transports) as made:
        made.d.card.hold()
        hand_over(made, made.ticket())
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE))
        wait_for(made.d.copying, PATIENT_S)
        made.d.service.release(KEY, "gone")
        assert made.p.end().error, "D has told it, and could have ended"
        assert made.d.service.drain() == []
        made.d.card.let_go()
        assert made.d.end().error
        assert made.d.copies_running() == 0


class DamagingStream(LateStream):
    """Changes one byte of the first wire, after it was summed up."""

    def copy_pages(
        self,
        copy: PageCopy,
        places: torch.Tensor,
        after: Mark | None,
        host: torch.Tensor | None,
    ) -> LateMark:
        card = self._card
        assert isinstance(card, DamagingCard)
        super().copy_pages(copy, places, after, host)

        def damage() -> None:
            if card.damages and copy.gathers:
                card.damages -= 1
                wire = copy.wire if host is None else host
                wire.view(torch.uint8)[5] ^= 1

        self.put(damage)
        return self.record()


class DamagingCard(LateCard):
    def __init__(self, damages: int) -> None:
        super().__init__()
        self.damages = damages

    def stream(self) -> LateStream:
        return DamagingStream(self)


@pytest.mark.parametrize(("path", "transports"), PATHS)
@pytest.mark.parametrize("damages", [1, 99])
def test_damage_is_found_and_fetched_again_once(
    path: KvPath, transports: str, damages: int
) -> None:
    with pair(path, transports=transports, card=DamagingCard(damages)) as made:
        hand_over(made, made.ticket())
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE))
        end = made.d.end()
        assert end.report.digest_mismatches == min(damages, 2)
        if damages == 1:
            assert end.error == ""
            assert np.array_equal(made.d.blocks(TARGET), made.p.blocks(SEQUENCE))
        else:
            assert end.trouble == "digest"


@pytest.mark.parametrize("what", ["no room", "other path"])
def test_what_cannot_go_from_card_to_card_goes_through_host_memory(what: str) -> None:
    card = LateCard()
    card.has_staging = what != "no room"
    with pair("auto" if what == "other path" else "device", card=card) as made:
        hand_over(made, made.ticket())
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE))
        assert made.d.end().error == ""
        assert np.array_equal(made.d.blocks(TARGET), made.p.blocks(SEQUENCE))
        assert made.d.card_buffers() == 0


@pytest.mark.parametrize("transports", ["tcp,self", "tcp,sm,self"])
def test_all_host_memory_is_page_locked(transports: str) -> None:
    with pair("pinned", transports=transports) as made:
        hand_over(made, made.ticket())
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE))
        assert made.d.end().error == ""
        is_shared = "sm" in transports
        assert True in writable(made.p)
        assert is_shared or True in writable(made.d)
        assert (False in writable(made.d)) == is_shared, "P's segment, which D only reads"


def writable(worker: Worker) -> list[bool]:
    return [writable for _, writable in worker.card.locked]


def test_what_cannot_be_page_locked_is_not_loaned() -> None:
    with pair("pinned", transports="tcp,sm,self") as lent:
        lanes = lent.d.lanes()
    card = LateCard()
    card.locks = False
    with pair("pinned", transports="tcp,sm,self", d_card=card) as made:
        hand_over(made, made.ticket())
        made.p.service.progress(KEY, SEQUENCE, len(SEQUENCE))
        assert made.d.end().error == ""
        assert np.array_equal(made.d.blocks(TARGET), made.p.blocks(SEQUENCE))
        assert (LOAN_LANE in lanes, LOAN_LANE in made.d.lanes()) == (True, False)


def test_a_card_without_room_for_a_message_is_told_at_the_start() -> None:
    card = LateCard()
    card.has_room = False
    with pytest.raises(BatonError, match="lower gpu_memory_utilization"), pair("auto", card=card):
        pass

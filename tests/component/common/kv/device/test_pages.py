"""Handoffs between workers whose KV is laid out differently, some of it on cards: right items on
every rank by every path, and never before their time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from common.config.kv import KvPath
from common.kv.canonical import CanonicalForm
from common.kv.device.memory import CanonicalDeviceMemory, CopyQueues, DeviceMemory
from common.kv.device.pages import CardPages, TokenPage
from common.kv.layout import KvMemory
from common.kv.service import KvService
from tests.component.common.kv.service_peer import wait_for
from tests.component.common.kv.test_service_parts import (
    ITEMS,
    KEY,
    PATIENT_S,
    SENT,
    SEQUENCE,
    LayOut,
    Worker,
    geometry_of,
    in_host,
    pair,
    ticket,
)
from tests.unit.common.kv.device.late_card import LateCard

TOKEN_BYTES = 2 * ITEMS * 4
PATHS = [("device", ""), ("pinned", "tcp,self"), ("pinned", "tcp,sm,self")]
"""From card to card, through page-locked memory and a wire, and loaned."""


class OnCard:
    """Lays KV out on late cards, one for each rank."""

    def __init__(self, *, tokens_first: bool) -> None:
        self._tokens_first = tokens_first
        self.cards: list[LateCard] = []

    def __call__(
        self, base: NDArray[np.uint8], heads: int, tokens: int
    ) -> tuple[KvMemory, CanonicalForm]:
        page = TokenPage(heads, tokens, TOKEN_BYTES, self._tokens_first)
        pages = CardPages(geometry_of(page.page_bytes, tokens))
        self.cards.append(LateCard())
        memory = DeviceMemory(CopyQueues(self.cards[-1], torch.from_numpy(base)), pages)
        return memory, CanonicalDeviceMemory(memory, page)


def tokens_first() -> LayOut:
    return OnCard(tokens_first=True)


def heads_first() -> LayOut:
    return OnCard(tokens_first=False)


def host() -> LayOut:
    return in_host


def handed_over(prefill: Worker, decode: Worker) -> None:
    given = ticket(prefill, decode)
    for service in decode.services:
        service.connect(prefill.address)
        service.fetch(given, 0, SEQUENCE)
    for service in prefill.services:
        service.offer(given, len(SEQUENCE))
        service.progress(KEY, SEQUENCE[:20], 20)
        service.progress(KEY, SEQUENCE, len(SEQUENCE), ended=True)
    received = decode.ends()
    assert {end.error for end in (*received, *prefill.ends())} == {""}
    assert not any(end.report.digest_mismatches for end in received)


@pytest.mark.parametrize(("path", "transports"), PATHS)
@pytest.mark.parametrize(
    ("lay_outs", "ranks", "tokens"),
    [
        ((tokens_first, heads_first), (1, 1), (32, 16)),
        ((heads_first, tokens_first), (1, 2), (16, 64)),
        ((tokens_first, tokens_first), (4, 2), (16, 128)),
        ((tokens_first, host), (1, 2), (16, 32)),
        ((host, tokens_first), (2, 1), (128, 16)),
        ((host, heads_first), (1, 1), (64, 64)),
    ],
)
def test_the_same_items_come_to_another_layout(
    lay_outs: Sequence[Callable[[], LayOut]],
    ranks: tuple[int, int],
    tokens: tuple[int, int],
    path: KvPath,
    transports: str,
) -> None:
    config = msgspec.structs.replace(
        SENT, path=path, transports=transports or SENT.transports, device_staging_mib=8
    )
    ours, theirs = (lay_out() for lay_out in lay_outs)
    with pair(*ranks, tokens, config, (ours, theirs)) as (prefill, decode):
        others = [*range(3), *range(40, 64)]
        before = decode.heads(others)
        handed_over(prefill, decode)
        on_cards = path == "device" and host not in lay_outs
        assert all((card_buffers(service) > 0) is on_cards for service in decode.services)
        assert (decode.heads(SEQUENCE) == prefill.heads(SEQUENCE)).all()
        assert (decode.heads(others) == before).all(), "other blocks are untouched"
        prefill.hold_nothing()
        decode.hold_nothing()


def test_blocks_that_the_engine_takes_back_are_overwritten_after_canonical_copies() -> None:
    config = msgspec.structs.replace(SENT, path="device", device_staging_mib=8)
    p_layout, d_layout = OnCard(tokens_first=True), OnCard(tokens_first=False)
    with pair(1, 1, (32, 16), config, (p_layout, d_layout)) as (prefill, decode):
        ((p,), (d,), (card,)) = prefill.services, decode.services, p_layout.cards
        old, given = prefill.heads(SEQUENCE), ticket(prefill, decode)
        card.hold()
        p.offer(given, len(SEQUENCE))
        d.fetch(given, 0, SEQUENCE)
        p.progress(KEY, SEQUENCE, len(SEQUENCE))
        wait_for(lambda: copies_of(p) > 0, PATIENT_S)
        p.withdraw(KEY)
        card.engine.put(lambda: write(prefill, ~old))
        card.mark().run()
        assert (prefill.heads(SEQUENCE) == ~old).all()
        card.let_go()
        (end,) = decode.ends()
        if not end.error:
            assert (decode.heads(SEQUENCE) == old).all()
        assert not end.report.digest_mismatches


@pytest.mark.parametrize("path", ["device", "pinned"])
def test_blocks_are_written_after_what_the_engine_still_does_with_them(path: KvPath) -> None:
    config = msgspec.structs.replace(SENT, path=path, device_staging_mib=8)
    d_layout = OnCard(tokens_first=True)
    with pair(1, 1, (32, 16), config, (OnCard(tokens_first=True), d_layout)) as (prefill, decode):
        ((p,), (d,), (card,)) = prefill.services, decode.services, d_layout.cards
        old, seen = decode.heads(SEQUENCE), list[NDArray[np.uint8]]()
        card.engine.put(lambda: seen.append(decode.heads(SEQUENCE)))
        given = ticket(prefill, decode)
        p.offer(given, len(SEQUENCE))
        d.fetch(given, 0, SEQUENCE, after=card.mark())
        p.progress(KEY, SEQUENCE, len(SEQUENCE))
        (end,) = decode.ends()
        assert end.error == ""
        assert (seen[0] == old).all()
        assert (decode.heads(SEQUENCE) == prefill.heads(SEQUENCE)).all()


def card_buffers(service: KvService) -> int:
    """How many messages came from card to card at once."""
    assert service._kv_thread is not None
    card = service._kv_thread.receive_side._pools.card
    return card._made if card is not None else 0


def copies_of(service: KvService) -> int:
    """How many copies run out of the blocks of open handoffs."""
    assert service._kv_thread is not None
    return sum(prompt.copies for prompt in list(service._kv_thread.send_side._prompts.values()))


def write(worker: Worker, heads: NDArray[np.uint8]) -> None:
    """These items to the blocks of the sequence, at once."""
    (memory,) = worker.memories
    assert isinstance(memory, CanonicalDeviceMemory)
    view = memory.pages.view(memory.queues.flat)
    ids = (torch.from_numpy(part) for part in memory.pages.split(np.array(SEQUENCE)))
    there = (slice(None), *ids)
    view[there] = torch.from_numpy(heads).reshape(view[there].shape)

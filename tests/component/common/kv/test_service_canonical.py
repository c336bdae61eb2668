"""Handoffs between services whose memories are laid out differently: right items, verified, and
nothing by tickets that do not say so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import msgspec
import numpy as np
import pytest

from common.blocks import ELEMENT_BYTES, Element
from common.config import KvConfig
from common.kv.canonical import CanonicalMemory, HeadMajorPage
from common.kv.compression.elements import converted
from common.kv.kv_thread import KvThread
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import (
    ConnectedPeer,
    KvDone,
    KvForm,
    KvOffer,
    KvPull,
    KvRefused,
    KvTaken,
)
from common.kv.peers.channel import Channel, WorkerIdentity
from common.kv.service import KvService
from common.messages import KvSource, Ticket
from tests.component.common.kv.offers.test_copies import STORING
from tests.component.common.kv.service_peer import (
    CONFIG,
    GEOMETRY,
    WIRE_ONLY,
    drained,
    make_service,
    wait_for,
)
from tests.component.common.kv.stored import Stored
from tests.rigs import messages

LAYERS, TOKENS, HEADS, ITEMS = 4, 1024, 2, 16
PATIENT_S = 30.0
"""A busy machine starves this process, which has both services, for seconds."""
LOANED, SENT = (
    msgspec.structs.replace(config, load_timeout_ms=PATIENT_S * 1000)
    for config in (CONFIG, WIRE_ONLY)
)
MEANS = KvForm("m")
WIDE, NARROW = (KvForm(f"m of {of}", "lossy", of) for of in ("float32", "bfloat16"))
CANONICAL_BYTES = HEADS * 16 * 2 * ITEMS * 4
SEQUENCE = list(range(3, 40))
"""Canonical blocks of the prompt, by their ids in either memory: those of one sequence of tokens,
because both memories here hold the same tokens in the same order."""


class Unlike:
    """As much of a channel as answers need, to a worker of another layout."""

    peer = ConnectedPeer(1, "d1", "inc-d1", alike=False)

    def __init__(self) -> None:
        self.sent: list[object] = []

    def send(self, message: object) -> None:
        self.sent.append(message)


class Worker:
    """A service over memory of blocks of so many tokens."""

    def __init__(self, name: str, tokens: int, seed: int, config: KvConfig, form: KvForm) -> None:
        element: Element = "bfloat16" if form.element == "bfloat16" else "float32"
        page = HeadMajorPage(HEADS, tokens, ITEMS, ELEMENT_BYTES[element])
        blocks, size = TOKENS // tokens, page.page_bytes
        geometry = Geometry(LAYERS, blocks, size, size * blocks, size)
        draws = np.random.default_rng(seed).standard_normal(blocks * LAYERS * size, np.float32)
        bits = draws[: geometry.end // page.item_bytes].view(np.uint32)
        if element != "float32":
            bits = converted(bits, "float32", element)
        self.base = bits.view(np.uint8)
        memory = HostMemory(self.base, geometry)
        self.canonical = CanonicalMemory(memory, page)
        identity = WorkerIdentity(name, f"inc-{name}", f"of {tokens}", form=form)
        forms: dict[str, CanonicalMemory] = {"": self.canonical} if form.meaning else {}
        if form.lossy_meaning:
            forms[element] = self.canonical
            if element != "bfloat16":
                forms["bfloat16"] = CanonicalMemory(memory, page, (element, "bfloat16"))
        self.service = KvService(identity, config, memory, canonical=forms)
        self.address = self.service.start()

    def items(self, block_ids: list[int]) -> bytes:
        found = np.zeros(len(block_ids) * self.canonical.geometry.block_bytes, np.uint8)
        self.canonical.gather(block_ids, found)
        return found.tobytes()


@contextmanager
def pair(
    prefill_tokens: int,
    decode_tokens: int,
    config: KvConfig = LOANED,
    decode_form: KvForm = MEANS,
    prefill_form: KvForm = MEANS,
) -> Iterator[tuple[Worker, Worker]]:
    prefill = Worker("p0", prefill_tokens, 1, config, prefill_form)
    decode = Worker("d0", decode_tokens, 2, config, decode_form)
    try:
        yield prefill, decode
    finally:
        decode.service.stop()
        prefill.service.stop()


def ticket(prefill: Worker, *, canonical: bool = True, element: str = "") -> Ticket:
    return messages.ticket(
        secret=os.urandom(16),
        kv_address=prefill.address,
        lease_ms=PATIENT_S * 1000,
        canonical=canonical,
        element=element,
    )


def handed_over(prefill: Worker, decode: Worker, given: Ticket, first: int = 0) -> KvDone:
    """The end on D, of canonical blocks [first, ...) of the sequence."""
    decode.service.fetch(given, first, SEQUENCE[first:])
    prefill.service.offer(given, len(SEQUENCE))
    prefill.service.progress(("r", 0), SEQUENCE[:20], 20)
    prefill.service.progress(("r", 0), SEQUENCE, len(SEQUENCE))
    (end,) = drained(decode.service, PATIENT_S)
    return end


@pytest.mark.parametrize(("ours", "theirs"), [(16, 32), (128, 32), (64, 64)])
@pytest.mark.parametrize("config", [LOANED, SENT], ids=["loaned", "sent"])
def test_the_same_items_come_to_another_layout(ours: int, theirs: int, config: KvConfig) -> None:
    with pair(ours, theirs, config) as (prefill, decode):
        before = decode.items([*range(5), *range(40, 64)])
        end = handed_over(prefill, decode, ticket(prefill), first=2)
        (sent,) = drained(prefill.service, PATIENT_S)
        assert (end.error, sent.error) == ("", "")
        assert (end.report.blocks, end.report.digest_mismatches) == (35, 0)
        assert end.report.canonical
        assert end.report.payload_bytes == 35 * LAYERS * CANONICAL_BYTES
        assert decode.items(SEQUENCE[2:]) == prefill.items(SEQUENCE[2:])
        assert decode.items([*range(5), *range(40, 64)]) == before, "other blocks are untouched"


def test_layers_leave_in_groups_in_the_canonical_form_too() -> None:
    grouped = msgspec.structs.replace(LOANED, layer_groups=4)
    with pair(32, 16, grouped) as (prefill, decode):
        given = ticket(prefill)
        decode.service.fetch(given, 0, SEQUENCE)
        prefill.service.offer(given, len(SEQUENCE))
        for layers in range(1, LAYERS):
            prefill.service.layers_computed(("r", 0), SEQUENCE, len(SEQUENCE), layers)
        prefill.service.progress(("r", 0), SEQUENCE, len(SEQUENCE), ended=True)
        (end,) = drained(decode.service, PATIENT_S)
        assert (end.error, end.report.messages) == ("", 4)
        assert decode.items(SEQUENCE) == prefill.items(SEQUENCE)


def test_a_ticket_for_equal_layouts_does_not_serve_unlike_ones() -> None:
    with pair(16, 32) as (prefill, decode):
        before = decode.base.copy()
        end = handed_over(prefill, decode, ticket(prefill, canonical=False))
        assert end.message == "KV of p0 is unlike that of here, and the ticket does not say so"
        assert (decode.base == before).all()


def test_another_meaning_is_refused_by_name() -> None:
    with pair(16, 32, decode_form=KvForm("n")) as (prefill, decode):
        end = handed_over(prefill, decode, ticket(prefill))
        either = "fingerprint of 32 is not of 16", "fingerprint of 16 is not of 32"
        assert any(sentence in end.message for sentence in either), "whoever sees it first"


def test_a_kept_stream_goes_to_another_layout() -> None:
    """The engine names its own blocks, of 32 tokens; the other worker asks for canonical ones."""
    with pair(32, 16) as (left, decode):
        kept = list(range(1, 20))
        moved = msgspec.structs.replace(ticket(left), attempt=1)
        left.service.keep(("r", 0), kept)
        left.service.hand_over(moved, 0)
        wanted = list(range(2 * kept[0], 2 * kept[-1] + 1))
        decode.service.fetch(moved, 0, wanted)
        (end,) = drained(decode.service, PATIENT_S)
        (sent,) = drained(left.service, PATIENT_S)
        assert (end.error, sent.error, sent.attempt) == ("", "", 0)
        assert decode.items(wanted) == left.items(wanted)


@pytest.mark.parametrize(("ours", "theirs"), [(WIDE, NARROW), (NARROW, WIDE)])
def test_items_are_converted_where_both_consent(ours: KvForm, theirs: KvForm) -> None:
    """They travel in the smaller type, so that nothing is lost on the way to the larger, and are
    not compressed besides."""
    consents = msgspec.structs.replace(LOANED, compression="fp8")
    with pair(16, 32, consents, theirs, ours) as (prefill, decode):
        end = handed_over(prefill, decode, ticket(prefill, element="bfloat16"))
        (sent,) = drained(prefill.service, PATIENT_S)
        assert (end.error, sent.error) == ("", "")
        assert end.report.element == sent.report.element == "bfloat16"
        assert (sent.report.compression, sent.choice) == ("", "")
        assert end.report.payload_bytes == len(SEQUENCE) * LAYERS * CANONICAL_BYTES // 2
        wide, narrow = (prefill, decode) if ours is WIDE else (decode, prefill)
        bits = np.frombuffer(wide.items(SEQUENCE), np.uint32)
        assert converted(bits, "float32", "bfloat16").tobytes() == narrow.items(SEQUENCE)


@pytest.mark.parametrize("element", ["", "bfloat16"])
def test_nothing_is_converted_without_the_consent_of_both(element: str) -> None:
    """A ticket that no router makes: D is exact, and of another element type than P."""
    exact = KvForm("m of float32")
    with pair(16, 32, LOANED, exact, NARROW) as (prefill, decode):
        before = decode.base.copy()
        end = handed_over(prefill, decode, ticket(prefill, element=element))
        sentence = "does not convert KV to bfloat16" if element else "fingerprint of "
        assert sentence in end.message
        assert (decode.base == before).all()


def test_types_that_differ_need_a_ticket_that_names_one() -> None:
    with pair(16, 32, LOANED, WIDE, NARROW) as (prefill, decode):
        before = decode.base.copy()
        end = handed_over(prefill, decode, ticket(prefill))
        assert end.message == "KV of p0 is unlike that of here, and the ticket does not say so"
        assert (decode.base == before).all()


def test_an_engine_without_a_canonical_form_says_so() -> None:
    with pair(32, 32, decode_form=KvForm()) as (prefill, decode):
        end = handed_over(prefill, decode, ticket(prefill))
        assert end.message == "this engine's KV has no canonical form"
        assert (decode.service.status is None) or not decode.service.status.holds


def test_a_store_is_closed_to_unlike_workers() -> None:
    """It holds blocks as they lie, under names that depend on their size."""
    service, _ = make_service("p0", np.zeros(GEOMETRY.end, np.uint8), STORING)
    stored, channel = Stored(service), Unlike()
    stored.save([b"%032d" % 1], [0])
    pull = KvPull(
        secret=bytes(16), request_id="r", attempt=0, transfer=7, total=1, hashes=b"%032d" % 1
    )
    offer = KvOffer(offer=8, kv_address="127.0.0.1:1", hashes=b"%032d" % 2)

    def ask(kv: KvThread) -> None:
        assert kv.sharing is not None
        for message in (pull, offer):
            kv.sharing.on_message(cast("Channel", channel), message)

    service._call(ask)
    wait_for(lambda: len(channel.sent) == 2, PATIENT_S)
    refused, taken = channel.sent
    assert isinstance(refused, KvRefused)
    assert refused.message == "it has no store for others"
    assert taken == KvTaken(offer=8, blocks=0)
    service.stop()


def test_a_store_is_not_pulled_from_by_an_unlike_worker() -> None:
    with pair(16, 32) as (prefill, decode):
        source = KvSource(
            name="p0",
            incarnation="inc-p0",
            fingerprint="of 16",
            kv_address=prefill.address,
            tokens=64,
        )
        with pytest.raises(ValueError, match="another fingerprint"):
            decode.service.pull(("r", 0), source, bytes(32), [0])

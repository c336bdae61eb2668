"""Compressed handoffs between two services: negotiated, verified, counted, and exactly the codec's
values."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from common.config import KvConfig
from common.kv.checksum.header import HEADER_BYTES, Encoding, ExpectedMessage, Verdict
from common.kv.compression.fp8 import Fp8Codec
from common.kv.layout import HostMemory
from common.kv.messages import KvDone
from tests.component.common.kv.service_peer import (
    CONFIG,
    GEOMETRY,
    LAYERS,
    PAGE,
    PAGE_FORMAT,
    Remote,
    drained,
    filled,
    make_service,
    remote,
    ticket,
)
from tests.unit.common.kv.headers import verify
from tests.unit.common.kv.headers import with_header as seal

SOURCE = [5, 6, 7, 20, 21, 3, *range(30, 45)]
TARGET = list(range(60, 60 - len(SOURCE), -1))
RAW = len(SOURCE) * LAYERS * PAGE
ENCODED = len(SOURCE) * LAYERS * PAGE_FORMAT.fp8_page_bytes
FP8 = msgspec.structs.replace(CONFIG, compression="fp8")
AUTO = msgspec.structs.replace(CONFIG, compression="auto")
EXACT = msgspec.structs.replace(FP8, exact=True)


def fetched(prefill: Remote, config: KvConfig, name: str) -> tuple[np.ndarray, KvDone, KvDone]:
    """D's memory after a handoff from a D of its own, and both ends."""
    base = np.zeros(GEOMETRY.end, np.uint8)
    service, _ = make_service("d0", base, config)
    try:
        handed = ticket(name, prefill.address)
        service.fetch(handed, 0, TARGET)
        prefill.offer_all(handed, SOURCE)
        (received,), (sent,) = drained(service), prefill.ends()
    finally:
        service.stop()
    return base, received, sent


def assert_arrived(base: np.ndarray, compressed: bool) -> None:
    held, origin = HostMemory(base, GEOMETRY), HostMemory(filled(1), GEOMETRY)
    codec, encoded = Fp8Codec(PAGE_FORMAT), np.empty(PAGE_FORMAT.fp8_page_bytes, np.uint8)
    for layer in range(LAYERS):
        for theirs, ours in zip(SOURCE, TARGET, strict=True):
            due = origin.page(layer, theirs).copy()
            if compressed:
                codec.encode(due, encoded)
                codec.decode(encoded, due)
            assert (held.page(layer, ours) == due).all()


def assert_reported(base: np.ndarray, received: KvDone, sent: KvDone, *, compressed: bool) -> None:
    assert (received.error, sent.error) == ("", "")
    assert_arrived(base, compressed)
    for report in (received.report, sent.report):
        assert report.compression == ("fp8" if compressed else "")
        assert report.payload_bytes == (ENCODED if compressed else RAW)
        assert report.raw_bytes == RAW
        assert report.wire_bytes == report.payload_bytes + HEADER_BYTES * report.messages


@pytest.mark.parametrize(
    ("own", "compressing"),
    [(CONFIG, []), (FP8, ["fp8", "auto"]), (EXACT, [])],
    ids=["none", "fp8", "exact"],
)
def test_a_pair_compresses_only_if_both_ask_for_it(own: KvConfig, compressing: list[str]) -> None:
    theirs = {"none": CONFIG, "fp8": FP8, "auto": AUTO, "exact": EXACT}
    with remote("p0", config=own) as prefill:
        for name, config in theirs.items():
            ends = fetched(prefill, config, name)
            assert_reported(*ends, compressed=name in compressing)


def test_auto_says_what_it_chose_and_why() -> None:
    """What this machine's rates make of it is its own affair; the policy's test is elsewhere."""
    with remote("p0", config=AUTO) as prefill:
        wire = msgspec.structs.replace(FP8, transports="tcp,self")
        first = fetched(prefill, wire, "first")
        assert_reported(*first, compressed=False)
        assert first[2].choice == "", "the link is not measured yet"
        second = fetched(prefill, wire, "second")
        assert "the link moves" in second[2].choice
        assert_reported(*second, compressed="is compressed" in second[2].choice)
        assert_reported(*fetched(prefill, EXACT, "third"), compressed=False)
        loan = fetched(prefill, FP8, "fourth")
        assert_reported(*loan, compressed=False)
        assert "stays in this host's memory" in loan[2].choice


@pytest.mark.parametrize("layer_groups", [1, 3])
def test_damage_is_caught_and_fetched_again_in_every_cut(layer_groups: int) -> None:
    config = msgspec.structs.replace(FP8, layer_groups=layer_groups)
    with remote("p0", fault="flip-first", config=config) as prefill:
        base, received, sent = fetched(prefill, config, "r")
        assert (received.error, received.report.digest_mismatches) == ("", 1)
        assert received.report.compression == "fp8"
        assert received.report.payload_bytes == ENCODED
        assert_arrived(base, True)
        assert "as configured" in sent.choice


def expected() -> ExpectedMessage:
    return ExpectedMessage(77, 3, 8, 2, 0, 4, 256, fp8_bytes=72)


def with_header(what: ExpectedMessage) -> np.ndarray:
    message = np.full(HEADER_BYTES + 256, 9, np.uint8)
    return seal(message, what)


def test_a_header_says_whether_its_payload_is_compressed() -> None:
    raw = verify(with_header(expected()), 77, 0, lambda _: expected())
    assert (raw.verdict, raw.encoding) == (Verdict.OK, Encoding.NONE)
    packed = verify(with_header(expected().compressed()), 77, 0, lambda _: expected())
    assert (packed.verdict, packed.encoding) == (Verdict.OK, Encoding.FP8)


def test_compression_that_was_not_allowed_is_damage() -> None:
    strict = ExpectedMessage(77, 3, 8, 2, 0, 4, 256)
    message = with_header(expected().compressed())
    assert verify(message, 77, 0, lambda _: strict).verdict is Verdict.CORRUPT
    with pytest.raises(ValueError, match="not to be compressed"):
        strict.compressed()


@pytest.mark.parametrize("what", [expected(), expected().compressed()], ids=["raw", "fp8"])
def test_no_damaged_bit_of_header_or_payload_passes(what: ExpectedMessage) -> None:
    message = with_header(what)
    for bit in range(what.message_bytes * 8):
        message[bit // 8] ^= 1 << bit % 8
        assert verify(message, 77, 0, lambda _: expected()).verdict is Verdict.CORRUPT
        message[bit // 8] ^= 1 << bit % 8

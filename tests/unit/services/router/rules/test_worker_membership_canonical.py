"""Workers whose KV means the same and lies differently are paired, by tickets that say so."""

import msgspec
import pytest

from common.errors import Code
from common.messages import (
    Capacity,
    Decode,
    HandOver,
    Introduce,
    KvReport,
    Load,
    Move,
    Prefill,
)
from services.router.degradation.detector import Cause
from services.router.events import WorkerDrained
from services.router.rules.moves import CONNECT_SECONDS
from tests.rigs.messages import capacity
from tests.unit.services.router.admin.verbs.test_explain import story
from tests.unit.services.router.rig import Rig

TOKEN_BYTES = 64


def room(block_tokens: int, meaning: str) -> Capacity:
    made = capacity(block_tokens=block_tokens, block_bytes=TOKEN_BYTES * block_tokens)
    return msgspec.structs.replace(made, kv_meaning=meaning)


def unlike_pair() -> Rig:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", fingerprint="b", capacity=room(32, "m"))
    rig.prefill("p0", fingerprint="a", capacity=room(16, "m"))
    return rig


def test_they_are_introduced_and_get_a_canonical_ticket() -> None:
    rig = unlike_pair()
    assert [told.prefill for told in rig.take(Introduce, "d0|1")] == ["p0"]
    rig.submit("r1", prompt=100)
    order, prefill = rig.take(Decode)[0], rig.take(Prefill)[0]
    assert order.ticket == prefill.ticket
    assert order.ticket is not None
    assert (order.ticket.prefill, order.ticket.canonical) == ("p0", True)


@pytest.mark.parametrize(
    ("ranks", "of_d", "parts"), [("h:1", "h:1,h:2", 2), ("h:1,h:2", "h:3", 2), ("h:1", "h:2", 1)]
)
def test_unlike_numbers_of_ranks_get_a_ticket_in_parts(ranks: str, of_d: str, parts: int) -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", fingerprint="b", capacity=room(32, "m"), kv_address=of_d)
    rig.prefill("p0", fingerprint="a", capacity=room(16, "m"), kv_address=ranks)
    rig.submit("r1", prompt=100)
    ticket = rig.take(Decode)[0].ticket
    assert ticket is not None
    assert (ticket.canonical, ticket.parts, ticket.kv_address) == (True, parts, ranks)


def test_ranks_of_one_layout_hand_over_each_to_its_own() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", capacity=room(32, "m"), kv_address="h:1,h:2")
    rig.prefill("p0", capacity=room(32, "m"), kv_address="h:3,h:4")
    rig.submit("r1", prompt=100)
    ticket = rig.take(Decode)[0].ticket
    assert ticket is not None
    assert (ticket.canonical, ticket.parts) == (False, 1)


def test_another_meaning_is_neither_introduced_nor_used() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", fingerprint="b", capacity=room(32, "m"))
    rig.prefill("p0", fingerprint="a", capacity=room(16, "n"))
    assert rig.take(Introduce) == []
    rig.submit("r1", prompt=100)
    assert rig.take(Decode)[0].ticket is None
    assert not rig.take(Prefill)


def test_equal_layouts_get_a_ticket_as_ever() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", capacity=room(32, "m"))
    rig.prefill("p0", capacity=room(32, "m"))
    rig.submit("r1", prompt=100)
    ticket = rig.take(Decode)[0].ticket
    assert ticket is not None
    assert not ticket.canonical


@pytest.mark.parametrize(("blocks", "wrong"), [(7, 0), (4, 1)])
def test_the_blocks_that_d_reports_are_canonical(blocks: int, wrong: int) -> None:
    """99 tokens are seven canonical blocks, and four of D's own."""
    rig = unlike_pair()
    rig.submit("r1", prompt=100)
    moved = 7 * 16 * TOKEN_BYTES
    report = KvReport(blocks=blocks, complete=True, messages=1, payload_bytes=moved)
    rig.prefilled("r1")
    rig.started("r1", kv=report)
    assert rig.core.tables.degradation.failed[Cause.BYTES] == wrong


@pytest.mark.parametrize(("canonical_bytes", "wrong"), [(0, 1), (12 * TOKEN_BYTES, 0)])
def test_canonical_blocks_have_no_layers_of_a_drafter(canonical_bytes: int, wrong: int) -> None:
    """A quarter of the KV of both is that of drafters."""
    rig = Rig()
    rig.gateway()
    for make, name in ((rig.decode, "d0"), (rig.prefill, "p0")):
        own = msgspec.structs.replace(room(16, "m"), kv_canonical_bytes=canonical_bytes)
        make(name, fingerprint=f"of {name}", capacity=own)
    rig.submit("r1", prompt=100)
    moved = 7 * 12 * TOKEN_BYTES
    rig.prefilled("r1")
    rig.started("r1", kv=KvReport(blocks=7, complete=True, messages=1, payload_bytes=moved))
    assert rig.core.tables.degradation.failed[Cause.BYTES] == wrong


def typed(block_tokens: int, meaning: str, lossy: str, element: str) -> Capacity:
    made = room(block_tokens, meaning)
    return msgspec.structs.replace(made, kv_lossy_meaning=lossy, kv_element=element)


@pytest.mark.parametrize(
    ("ours", "theirs", "element"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("bfloat16", "float16", "bfloat16"),
        ("float16", "bfloat16", "float16"),
    ],
)
def test_kv_travels_in_the_smaller_element_type_by_consent(
    ours: str, theirs: str, element: str
) -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", fingerprint="b", capacity=typed(32, "n", "lossy", theirs))
    rig.prefill("p0", fingerprint="a", capacity=typed(32, "m", "lossy", ours))
    assert [told.prefill for told in rig.take(Introduce, "d0|1")] == ["p0"]
    rig.submit("r1", prompt=100)
    ticket = rig.take(Decode)[0].ticket
    assert ticket is not None
    assert (ticket.canonical, ticket.element) == (True, element)


@pytest.mark.parametrize(("ours", "theirs"), [("lossy", ""), ("", "lossy"), ("", "")])
def test_without_the_consent_of_both_they_are_not_paired(ours: str, theirs: str) -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", fingerprint="b", capacity=typed(32, "n", theirs, "float32"))
    rig.prefill("p0", fingerprint="a", capacity=typed(32, "m", ours, "bfloat16"))
    assert rig.take(Introduce) == []
    rig.submit("r1", prompt=100)
    assert rig.take(Decode)[0].ticket is None


def test_equal_types_are_not_converted_whatever_is_allowed() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", fingerprint="b", capacity=typed(32, "m", "lossy", "float32"))
    rig.prefill("p0", fingerprint="a", capacity=typed(16, "m", "lossy", "float32"))
    rig.submit("r1", prompt=100)
    ticket = rig.take(Decode)[0].ticket
    assert ticket is not None
    assert (ticket.canonical, ticket.element) == (True, "")


@pytest.mark.parametrize(("moved", "wrong"), [(7 * 8 * TOKEN_BYTES, 0), (7 * 16 * TOKEN_BYTES, 1)])
def test_what_d_reports_is_of_the_type_on_the_wire_and_explain_tells_of_it(
    moved: int, wrong: int
) -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", fingerprint="b", capacity=typed(32, "n", "lossy", "float32"))
    rig.prefill("p0", fingerprint="a", capacity=typed(32, "m", "lossy", "bfloat16"))
    rig.submit("r1", prompt=100)
    report = KvReport(blocks=7, complete=True, messages=1, payload_bytes=moved, element="bfloat16")
    rig.prefilled("r1")
    rig.started("r1", kv=report)
    assert (
        "the KV was converted: p0 computes in bfloat16, d0 in float32, and it travelled as bfloat16"
    ) in story(rig)
    assert rig.core.tables.degradation.failed[Cause.BYTES] == wrong


@pytest.mark.parametrize(("meaning", "canonical"), [("m", True), ("n", None)])
def test_a_stream_moves_to_a_decode_worker_of_another_layout(
    meaning: str, canonical: bool | None
) -> None:
    rig = unlike_pair()
    rig.submit("r0", resumable=True)
    rig.prefilled("r0")
    rig.started("r0")
    rig.beat(rig.decode("d1", fingerprint="c", capacity=room(16, meaning)), Load())
    told = [introduction.kv_address for introduction in rig.take(Introduce, "d1|1")]
    assert (rig.row("d0|1").kv_address in told) is bool(canonical), "before any stream moves"
    rig.sent.clear()
    rig.handle(WorkerDrained("d0|1", on=True))
    rig.tick()
    introduced = [told.kv_address for told in rig.take(Introduce, "d1|1")]
    assert (rig.row("d0|1").kv_address in introduced) is bool(canonical)
    rig.tick(CONNECT_SECONDS + 0.3)
    assert [move.request_id for move in rig.take(Move)] == (["r0"] if canonical else [])
    if canonical:
        rig.ended("r0", error=Code.MOVED)
        rig.submit("r0", 2, prompt=44, out=4, moved_from="d0|1", resumable=True)
        (order,) = rig.take(HandOver, "d0|1")
        assert (order.ticket.decode, order.ticket.canonical) == ("d1", True)

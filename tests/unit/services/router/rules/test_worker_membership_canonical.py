"""Workers whose KV means the same and lies differently are paired, by tickets that say so."""

import msgspec
import pytest

from common.messages import Capacity, Decode, Introduce, KvReport, Prefill
from services.router.degradation.detector import Cause
from tests.rigs.messages import capacity
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

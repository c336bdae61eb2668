"""Two sides agree on seals if both know a secret of the fleet, and on nothing else."""

from __future__ import annotations

import pytest

from common.errors import WireError
from common.kv.peers.authentication import SEAL_BYTES, FrameSeals, Greeting, agree, key_id
from common.kv.transport.ucx import LINK_GREETING_BYTES

OLD, NEW, FOREIGN = b"o" * 32, b"n" * 32, b"f" * 32
TAGS = 11, 22
BODY = b"the body of a message"


def both(*known: tuple[bytes, ...]) -> tuple[FrameSeals, FrameSeals]:
    """The seals of two sides that know these secrets."""
    mine, theirs = (Greeting.unpack(Greeting.of(secrets).pack()) for secrets in known)
    return (
        agree(known[0], mine, TAGS[0], theirs, TAGS[1]),
        agree(known[1], theirs, TAGS[1], mine, TAGS[0]),
    )


def test_a_greeting_is_read_as_it_was_made_and_never_twice_the_same() -> None:
    for secrets in ((), (OLD,), (OLD, NEW)):
        greeting = Greeting.of(secrets)
        assert len(greeting.pack()) == LINK_GREETING_BYTES
        assert Greeting.unpack(greeting.pack()) == greeting
        assert greeting.nonce != Greeting.of(secrets).nonce
    assert OLD not in Greeting.of((OLD,)).pack()


@pytest.mark.parametrize(
    "known",
    [((OLD,), (OLD,)), ((OLD, NEW), (OLD,)), ((OLD,), (NEW, OLD)), ((OLD, NEW), (NEW, OLD))],
)
def test_who_knows_a_common_secret_reads_the_other(known: tuple[tuple[bytes, ...], ...]) -> None:
    mine, theirs = both(*known)
    for _ in range(3):
        seal = mine.next_sent(BODY)
        assert len(seal) == SEAL_BYTES
        assert theirs.next_received(BODY) == seal
        assert theirs.next_sent(BODY) == mine.next_received(BODY)
    assert mine.key_id == theirs.key_id
    assert mine.key_id in {key_id(OLD), key_id(NEW)}


@pytest.mark.parametrize("known", [((OLD,), (FOREIGN,)), ((), (OLD,)), ((OLD, NEW), ())])
def test_who_knows_none_is_refused(known: tuple[tuple[bytes, ...], ...]) -> None:
    with pytest.raises(WireError):
        both(*known)


def test_without_secrets_a_seal_proves_nothing_and_finds_faults() -> None:
    mine, theirs = both((), ())
    assert mine.key_id == b""
    assert mine.next_sent(BODY) == theirs.next_received(BODY) != theirs.next_received(BODY + b".")
    assert len(mine.next_sent(BODY)) == SEAL_BYTES


def test_a_seal_is_good_for_one_message_one_place_and_one_direction() -> None:
    mine, theirs = both((OLD,), (OLD,))
    first, second, back = mine.next_sent(BODY), mine.next_sent(BODY), theirs.next_sent(BODY)
    assert len({first, second, back}) == 3
    assert theirs.next_received(BODY + b".") != first
    assert theirs.next_received(BODY) == second


@pytest.mark.parametrize("part", ["nonce", "other nonce", "tag", "other tag", "ids"])
def test_a_seal_is_good_for_one_link(part: str) -> None:
    """Whatever of the two greetings differs, the seals do."""
    mine, theirs = Greeting.of((OLD,)), Greeting.of((OLD,))
    first = agree((OLD,), mine, 1, theirs, 2).next_sent(BODY)
    changed = {
        "nonce": (Greeting.of((OLD,)), 1, theirs, 2),
        "other nonce": (mine, 1, Greeting.of((OLD,)), 2),
        "tag": (mine, 3, theirs, 2),
        "other tag": (mine, 1, theirs, 3),
        "ids": (mine, 1, Greeting(theirs.nonce, (*theirs.key_ids, key_id(NEW))), 2),
    }[part]
    assert agree((OLD,), *changed).next_sent(BODY) != first


def test_each_transfer_of_a_link_has_a_key_that_both_sides_know() -> None:
    mine, theirs = both((OLD,), (OLD,))
    keys = [mine.data_key(transfer) for transfer in (0, 1, (1 << 64) - 1)]
    assert keys == [theirs.data_key(transfer) for transfer in (0, 1, (1 << 64) - 1)]
    other, _ = both((OLD,), (OLD,))
    assert len({*keys, other.data_key(0)}) == 4
    assert both((), ())[0].data_key(0) == b""


def test_ones_own_greeting_is_nobody_elses() -> None:
    mine = Greeting.of((OLD,))
    with pytest.raises(WireError):
        agree((OLD,), mine, 1, mine, 1)

"""A cut of `make faults-kv`, and the proof that its checks can fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.security.files import KV, KvSecrets, write
from tests.faults.plan import KINDS, draw
from tests.faults.verdict import broken_promises, table, useless
from tests.faults.world import Notes, World

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

SEED = 11
lanes = pytest.mark.parametrize("loans", [True, False], ids=["loaned", "sent"])
ALWAYS_FREQUENT = tuple(k for k in KINDS if k.startswith(("data:", "KvCredit:")))


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    """Ends the processes of every world a test opens."""
    opened: list[World] = []
    yield opened
    for world in opened:
        world.close()


def played(
    worlds: list[World],
    count: int,
    *,
    fault_share: float,
    kill_every: int = 0,
    control: str = "",
    loans: bool = True,
) -> Notes:
    worlds.append(
        World(SEED, fault_share=fault_share, kill_every=kill_every, control=control, loans=loans)
    )
    worlds[-1].warm(8)
    worlds[-1].run(0, count)
    return worlds[-1].notes


@lanes
def test_no_promise_breaks_while_messages_are_bent_and_workers_die(
    worlds: list[World], loans: bool
) -> None:
    notes = played(worlds, 500, fault_share=0.6, kill_every=150, loans=loans)
    assert broken_promises(notes) == [], table(notes)
    assert useless(notes, ALWAYS_FREQUENT) == [], table(notes)
    assert len(notes.kills) == 3, table(notes)
    assert len(notes.caught) >= 20, table(notes)


@lanes
def test_no_promise_breaks_between_workers_that_authenticate_each_other(
    worlds: list[World], loans: bool, tmp_path: Path
) -> None:
    path = tmp_path / KV
    write(path, KvSecrets(secrets=["5" * 64]))
    worlds.append(World(SEED, fault_share=0.6, kill_every=70, loans=loans, secrets_file=str(path)))
    worlds[-1].run(0, 150)
    notes = worlds[-1].notes
    assert broken_promises(notes) == [], table(notes)
    assert len(notes.kills) == 2, table(notes)
    assert notes.caught, table(notes)


@lanes
def test_without_faults_nothing_is_refused(worlds: list[World], loans: bool) -> None:
    notes = played(worlds, 100, fault_share=0.0, loans=loans)
    assert broken_promises(notes) == [], table(notes)
    assert notes.caught == set()
    assert notes.done == 108, table(notes)
    assert notes.outcomes["none", "delivered"] > 0, table(notes)


@lanes
def test_a_receiver_that_ignores_its_digests_is_found_out(worlds: list[World], loans: bool) -> None:
    """Within 80 handoffs; those after both sentences would prove nothing more."""
    notes = played(worlds, 20, fault_share=1.0, control="blind", loans=loans)
    sentences = ("are not P's", "were accepted")
    for first in (20, 40, 60):
        if not all(sentence in " ".join(broken_promises(notes)) for sentence in sentences):
            worlds[-1].run(first, 20)
    broken = broken_promises(notes)
    for sentence in sentences:
        assert any(sentence in promise for promise in broken), table(notes)


def test_faults_that_miss_are_found_out(worlds: list[World]) -> None:
    notes = played(worlds, 40, fault_share=1.0, control="misaimed")
    missed = useless(notes, ALWAYS_FREQUENT)
    assert len(missed) == len(ALWAYS_FREQUENT), table(notes)


def test_a_seed_draws_the_same_faults_again() -> None:
    assert [draw(3, n, 0.5) for n in range(300)] == [draw(3, n, 0.5) for n in range(300)]
    kinds = {draw(3, n, 1.0).kind for n in range(2000)}
    assert kinds == set(KINDS)

"""A prompt that two workers died with is refused to everybody, until its time is over or it is
lifted."""

from __future__ import annotations

import pytest

from common.messages import PrefillEnded, Refused, Role
from services.router.events import PromptsCleared
from services.router.fleet.prompt_quarantine import (
    QUARANTINE_SECONDS,
    QUARANTINED_MAX,
    SUSPECTS_MAX,
    PromptQuarantine,
)
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig

BAD, GOOD = b"b" * 16, b"g" * 16


def submit(rig: Rig, request_id: str, attempt: int = 1, digest: bytes = BAD) -> None:
    rig.submit(request_id, attempt, prompt_digest=digest)


def two_deaths() -> Rig:
    """Of decode workers, each while it ran `r1`."""
    rig = Rig(remote_prefill="never")
    rig.gateway()
    for name in ("d0", "d1", "d2"):
        rig.decode(name)
    for attempt in (1, 2):
        submit(rig, "r1", attempt)
        rig.gone(next(w.identity for w in rig.core.tables.workers.values() if w.held))
    return rig


def test_after_two_deaths_the_prompt_is_refused_whoever_sends_it() -> None:
    rig = two_deaths()
    rig.take(Refused)
    submit(rig, "r1", 3)
    submit(rig, "r2")
    refused = rig.take(Refused)
    assert [r.code for r in refused] == ["request_quarantined"] * 2
    assert "2 workers died with this prompt (request r1)" in refused[0].message
    assert refused[0].retry_after_ms == 0
    submit(rig, "r3", digest=GOOD)
    assert rig.take(Refused) == []
    assert rig.core.tables.attempts["r3", 1].placement is not None


def test_one_death_bars_nothing() -> None:
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.decode("d0")
    rig.decode("d1")
    submit(rig, "r1")
    rig.gone(rig.core.tables.attempts["r1", 1].decode)
    submit(rig, "r1", 2)
    assert rig.take(Refused) == []


def test_it_is_refused_for_a_while_only() -> None:
    rig = two_deaths()
    rig.tick(QUARANTINE_SECONDS + 1, alive=("g0|1", "d2|1"))
    submit(rig, "r2")
    assert rig.take(Refused) == []


@pytest.mark.parametrize("digest", [None, BAD])
def test_an_operator_lifts_it(digest: bytes | None) -> None:
    rig = two_deaths()
    rig.handle(PromptsCleared(digest))
    submit(rig, "r2")
    assert rig.take(Refused) == []


def verb(rig: Rig, **args: str) -> list[str]:
    """The digests that the admin verb shows."""
    return [row["digest"] for row in ask(rig, "quarantine", **args)["prompts"]]


def test_the_admin_verb_lists_and_lifts_it() -> None:
    rig = two_deaths()
    submit(rig, "r2")
    assert verb(rig) == [BAD.hex()]
    assert verb(rig, action="clear", prompt="00") == [BAD.hex()]
    assert verb(rig, action="clear", decode="d2") == [BAD.hex()], "that is about a pair"
    assert verb(rig, action="clear", prompt=BAD.hex()) == []


def test_a_worker_that_leaves_after_its_drain_is_no_death() -> None:
    rig = Rig(remote_prefill="never")
    rig.gateway()
    for name in ("d0", "d1", "d2"):
        rig.decode(name)
    for attempt in (1, 2):
        submit(rig, "r1", attempt)
        at = next(w.identity for w in rig.core.tables.workers.values() if w.held)
        rig.leave(at)
        rig.gone(at)
    submit(rig, "r2")
    assert rig.take(Refused) == []


def test_of_a_prefill_workers_queue_only_the_first_is_suspected() -> None:
    rig = Rig()
    rig.gateway()
    rig.prefill("p0")
    rig.decode("d0")
    for request_id in ("r1", "r2", "r3"):
        submit(rig, request_id, digest=request_id.encode() * 8)
    rig.receive("p0|1", PrefillEnded(request_id="r1", attempt=1, elapsed_ms=1.0))
    rig.gone("p0|1")
    assert list(rig.core.tables.quarantine._suspects) == [(Role.PREFILL, "r2")]
    rig.gone("d0|1")
    submit(rig, "r4", digest=b"r2" * 8)
    assert rig.take(Refused) == [], "one worker of each role is no proof"


def test_both_tables_are_bounded() -> None:
    quarantine = PromptQuarantine(2)
    for number in range(SUSPECTS_MAX + 10):
        quarantine.record_death((Role.DECODE, f"s{number}"), BAD, "d0|1", 0.0)
        quarantine.check_invariants()
    for number in range(QUARANTINED_MAX + 10):
        for worker in ("d0|1", "d1|1"):
            quarantine.record_death((Role.DECODE, f"b{number}"), number.to_bytes(16), worker, 0.0)
        quarantine.check_invariants()
    assert len(quarantine.rows(0.0)) == QUARANTINED_MAX

"""When one worker more should prefill, or decode, and when nothing should change."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import BalanceConfig
from common.messages import Role
from services.router.fleet.balance.controller import (
    LOOK_SECONDS,
    REQUESTS_MIN,
    SHORT_SECONDS,
    Balance,
    Verdict,
)
from services.router.fleet.balance.goodput import Curves, Split, capacity, neighbours
from services.router.fleet.balance.mix import Mix, MixWindow

P, D = Role.PREFILL, Role.DECODE
#: 1 ms for each prompt token, 10 ms for a step of 8 streams, a wire that never shows.
CURVES = Curves(lambda tokens: tokens / 1000, lambda _: 0.01, lambda _: 0.0, 8, 1_000_000)


def feed(
    balance: Balance, *, rate: float, prompt: int, output: int, since: float, seconds: float
) -> float:
    """A steady load. Returns when it ends."""
    for n in range(round(rate * seconds)):
        now = since + n / rate
        balance.add_request(100, now)
        balance.add_prompt(prompt, now)
        balance.add_output(output, now)
    return since + seconds


def verdict(
    split: tuple[int, int], *, curves: Curves = CURVES, config: Any = None, **load: Any
) -> Verdict:
    balance = Balance(config or BalanceConfig(mode="dry"))
    now = feed(balance, **{"rate": 10.0, "since": 1000.0, "seconds": 600.0, **load})
    return balance.look(Split(*split), curves, now)


def test_a_phase_serves_what_its_workers_can_and_nobody_more_than_is_asked() -> None:
    limits = capacity(Split(2, 3), Mix(100, 10.0, 500.0, 100.0, 600.0), CURVES)
    assert limits.prefill == pytest.approx(2 / 0.5)
    assert limits.decode == pytest.approx(3 * 8 / 1.0)
    assert limits.goodput(1.0) == 1.0
    assert limits.goodput(10.0) == pytest.approx(0.97 * 4)


def test_a_decode_worker_has_no_more_streams_than_its_kv_has_room_for() -> None:
    mix, full = Mix(100, 10.0, 500.0, 100.0, kv=600.0), Split(2, 3)
    narrow = CURVES._replace(kv_tokens=1_500)
    assert capacity(full, mix, narrow).decode == pytest.approx(3 * 2 / 1.0)
    tiny = CURVES._replace(kv_tokens=100)
    assert capacity(full, mix, tiny).decode == pytest.approx(3 * 1 / 1.0)


@pytest.mark.parametrize(
    ("split", "others"),
    [((2, 2), [(3, 1), (1, 3)]), ((1, 2), [(2, 1)]), ((2, 1), [(1, 2)]), ((1, 1), [])],
)
def test_one_of_each_role_stays(split: tuple[int, int], others: list[tuple[int, int]]) -> None:
    assert neighbours(Split(*split)) == others


def test_long_prompts_want_another_prefill_worker() -> None:
    told = verdict((1, 3), prompt=400, output=20)
    assert told.role is P
    assert "2P+2D would serve more than 1P+3D: +100% in the last 30 s" in told.sentence
    assert [option.split for option in told.options] == [(1, 3), (2, 2)]


def test_long_answers_want_another_decode_worker() -> None:
    told = verdict((3, 1), prompt=10, output=200)
    assert told.role is D
    assert told.sentence.startswith("2P+2D would serve more than 3P+1D")


def test_nothing_changes_where_all_that_is_asked_for_is_served() -> None:
    told = verdict((1, 3), prompt=40, output=20)
    assert told.role is None
    assert told.sentence == "1P+3D serves all of 10.00 requests/s"


def test_a_gain_that_is_too_small_changes_nothing() -> None:
    told = verdict((1, 2), prompt=400, output=380)
    assert told.role is None
    assert "more than +10% in both is asked for" in told.sentence
    eager = BalanceConfig(mode="dry", gain_min=0.0)
    assert verdict((1, 2), prompt=400, output=100, config=eager).role is P


def test_a_wave_that_the_long_window_does_not_show_changes_nothing() -> None:
    balance = Balance(BalanceConfig(mode="dry"))
    now = feed(balance, rate=10.0, prompt=10, output=20, since=1000.0, seconds=570.0)
    now = feed(balance, rate=10.0, prompt=400, output=20, since=now, seconds=SHORT_SECONDS)
    told = balance.look(Split(1, 3), CURVES, now)
    assert told.role is None
    assert told.mixes[0].prompt > 300 > told.mixes[1].prompt


def test_where_the_wire_is_the_bottleneck_no_prefill_worker_helps() -> None:
    wire = CURVES._replace(exposed_s=lambda tokens: 2 * tokens / 1000)
    told = verdict((1, 3), prompt=400, output=20, curves=wire)
    assert told.role is None
    assert "the wire for KV is the bottleneck" in told.sentence
    assert verdict((3, 1), prompt=10, output=200, curves=wire).role is D


def test_after_a_change_there_is_none_for_a_while() -> None:
    balance = Balance(BalanceConfig(mode="dry", cooldown_ms=60_000))
    now = feed(balance, rate=10.0, prompt=400, output=20, since=1000.0, seconds=600.0)
    balance.record_change(now)
    told = balance.look(Split(1, 3), CURVES, now + 59)
    assert told.role is None
    now = feed(balance, rate=10.0, prompt=400, output=20, since=now, seconds=60.0)
    assert balance.look(Split(1, 3), CURVES, now - 0.1).sentence.endswith("changed 60 s ago")
    assert balance.look(Split(1, 3), CURVES, now).role is P


def test_too_few_requests_say_nothing() -> None:
    rate = (REQUESTS_MIN - 2) / SHORT_SECONDS
    told = verdict((1, 3), prompt=4_000, output=20, rate=rate)
    assert told.role is None
    assert "say too little" in told.sentence
    nothing = Balance(BalanceConfig(mode="dry")).look(Split(1, 3), CURVES, 1000.0)
    assert nothing.sentence.startswith("0 requests in 30 s say too little")


@pytest.mark.parametrize("split", [(0, 3), (3, 0)])
def test_without_both_roles_there_is_nothing_to_balance(split: tuple[int, int]) -> None:
    told = verdict(split, prompt=400, output=20)
    assert (told.role, told.options) == (None, ())


def test_what_holds_a_change_back_is_told() -> None:
    balance = Balance(BalanceConfig(mode="dry"))
    balance.hold_back("nothing was seen")
    now = feed(balance, rate=10.0, prompt=400, output=20, since=1000.0, seconds=600.0)
    balance.look(Split(1, 3), CURVES, now)
    balance.hold_back("d0 is drained")
    assert balance.verdict is not None
    assert balance.verdict.role is None
    assert balance.verdict.sentence.endswith("; but d0 is drained")


def test_it_looks_every_few_seconds_and_never_when_it_is_off() -> None:
    balance = Balance(BalanceConfig(mode="dry"))
    assert balance.due(1000.0)
    balance.look(Split(1, 1), CURVES, 1000.0)
    assert not balance.due(1000.0 + LOOK_SECONDS - 0.1)
    assert balance.due(1000.0 + LOOK_SECONDS)
    off = Balance(BalanceConfig())
    off.add_request(100, 1.0)
    off.add_prompt(1, 1.0)
    off.add_output(1, 1.0)
    assert not off.due(1000.0)
    assert not off.look(Split(1, 1), CURVES, 1.0).mixes


def test_a_window_forgets_what_is_older_and_keeps_few_slots() -> None:
    window = MixWindow(30.0)
    assert window.mix(0.0) is None
    for n in range(100):
        window.add_request(100, 1000.0 + n)
        window.add_prompt(100 if n < 60 else 10, 1000.0 + n)
        window.add_output(4, 1000.0 + n)
    mix = window.mix(1099.0)
    assert mix is not None
    assert (mix.requests, mix.prompt, mix.output) == (30, 10.0, 4.0)
    assert mix.rate == pytest.approx(1.0, rel=0.05)
    assert len(window._slots) == 30
    assert window.mix(2000.0) is None


def test_a_young_window_counts_the_time_that_it_has_seen() -> None:
    window = MixWindow(600.0)
    for n in range(100):
        window.add_request(100, 1000.0 + n)
    window.add_prompt(1, 1100.0)
    window.add_output(1, 1100.0)
    mix = window.mix(1100.0)
    assert mix is not None
    assert mix.rate == pytest.approx(1.0)

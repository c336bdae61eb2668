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
    Ordered,
    Verdict,
)
from services.router.fleet.balance.goodput import (
    Curves,
    Split,
    best,
    capacity,
    neighbours,
    wire_decides,
)
from services.router.fleet.balance.mix import Mix, MixWindow

P, D = Role.PREFILL, Role.DECODE
MODES: tuple[Any, ...] = ("off", "dry", "on")
#: 1 ms for each prompt token, 10 ms for a step of 8 streams, a wire that never shows.
CURVES = Curves(lambda tokens: tokens / 1000, lambda _: 0.01, lambda _: 0.0, 8, 1_000_000)


def feed(
    balance: Balance, *, rate: float, prompt: int, output: int, since: float, seconds: float
) -> float:
    """A steady load. Returns when it ends."""
    for n in range(round(rate * seconds)):
        now = since + n / rate
        balance.add_request(prompt, output, now)
        balance.add_prompt(prompt, prompt, now)
        balance.add_output(output, output, now)
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
    balance = Balance(BalanceConfig(mode="dry", long_ms=600_000.0))
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
    off.add_request(100, 10, 1.0)
    off.add_prompt(1, 1, 1.0)
    off.add_output(1, 1, 1.0)
    assert not off.due(1000.0)
    assert not off.look(Split(1, 1), CURVES, 1.0).mixes


def test_a_window_forgets_what_is_older_and_keeps_few_slots() -> None:
    window = MixWindow(30.0)
    assert window.mix(0.0) is None
    for n in range(100):
        window.add_request(100 if n < 60 else 10, 8, 1000.0 + n)
        window.add_prompt(10, 10, 1000.0 + n)
        window.add_output(8, 4, 1000.0 + n)
    mix = window.mix(1099.0)
    assert mix is not None
    assert (mix.requests, mix.prompt, mix.output, mix.kv) == (30, 10.0, 4.0, 18.0)
    assert mix.rate == pytest.approx(1.0, rel=0.05)
    assert len(window._slots) == 30
    assert window.mix(2000.0) is None


def test_a_young_window_counts_the_time_that_it_has_seen() -> None:
    window = MixWindow(600.0)
    for n in range(100):
        window.add_request(100, 10, 1000.0 + n)
    window.add_prompt(1, 1, 1100.0)
    window.add_output(1, 1, 1100.0)
    mix = window.mix(1100.0)
    assert mix is not None
    assert mix.rate == pytest.approx(1.0)


def test_what_is_refused_counts_as_much_as_what_is_served() -> None:
    """A full prefill worker serves short prompts and refuses long ones; the need is in those."""
    window = MixWindow(30.0)
    for n in range(30):
        window.add_request(1_000 if n % 2 else 100, 50 if n % 2 else 450, 1000.0 + n)
        if not n % 2:
            window.add_prompt(100, 50, 1000.0 + n)
            window.add_output(450, 90, 1000.0 + n)
    mix = window.mix(1029.0)
    assert mix is not None
    assert mix.prompt == pytest.approx(0.5 * 550), "half of it was cached"
    assert mix.output == pytest.approx(0.2 * 250), "a fifth of what is allowed is generated"


def test_a_window_without_requests_has_no_mix() -> None:
    window = MixWindow(30.0)
    window.add_prompt(1, 1, 1000.0)
    window.add_output(1, 1, 1000.0)
    assert window.mix(1000.0) is None


def test_in_a_large_fleet_the_best_split_shows_what_one_step_does_not() -> None:
    told = verdict((20, 20), rate=100.0, prompt=400, output=100)
    assert told.role is P
    assert told.options[0].split == (20, 20)
    assert min(told.options[1].goodput) < 1.1 * told.options[0].goodput[0]
    name = told.options[-1].split.name
    assert told.sentence.startswith(f"{name} would serve more than 20P+20D")
    nearly = best(Split(20, 20), Mix(1, 100.0, 400.0, 100.0, 500.0), CURVES)
    assert verdict(nearly, rate=100.0, prompt=400, output=100).role is None


@pytest.mark.parametrize(
    ("prompt", "output", "wanted"),
    [(400.0, 20.0, (9, 1)), (10.0, 2_000.0, (1, 9)), (100.0, 80.0, (5, 5)), (1.0, 1e9, (1, 9))],
)
def test_the_best_split_is_where_both_phases_are_equally_busy(
    prompt: float, output: float, wanted: tuple[int, int]
) -> None:
    assert best(Split(2, 8), Mix(1, 1.0, prompt, output, 500.0), CURVES) == wanted


def test_a_wire_that_shows_is_part_of_what_prefill_workers_can_do() -> None:
    wire = CURVES._replace(exposed_s=lambda tokens: tokens / 1000)
    limits = capacity(Split(2, 3), Mix(100, 10.0, 500.0, 100.0, 600.0), wire)
    assert limits.wire == pytest.approx(2 / (0.5 + 0.5))
    assert limits.goodput(10.0) == pytest.approx(0.97 * 2.0)
    assert capacity(Split(2, 3), Mix(100, 10.0, 500.0, 1.0, 600.0), CURVES).wire == float("inf")


def test_while_the_wire_is_the_bottleneck_no_prefill_worker_leaves_either() -> None:
    """Decode workers would wait for the wire as well."""
    wire = CURVES._replace(exposed_s=lambda tokens: 20 * tokens / 1000)
    mix = Mix(100, 10.0, 100.0, 300.0, 400.0)
    assert wire_decides(Split(3, 1), mix, wire)
    assert not wire_decides(Split(3, 1), mix._replace(output=30_000.0), wire)
    assert not wire_decides(Split(3, 1), mix, CURVES)


def test_a_router_that_has_watched_too_little_changes_nothing() -> None:
    balance = Balance(BalanceConfig(mode="on"))
    now = feed(balance, rate=10.0, prompt=400, output=20, since=1000.0, seconds=119.0)
    told = balance.look(Split(1, 3), CURVES, now)
    assert (told.role, told.sentence.endswith("watched for less than 2 min")) == (None, True)
    now = feed(balance, rate=10.0, prompt=400, output=20, since=now, seconds=1.0)
    assert balance.look(Split(1, 3), CURVES, now).role is P


def test_an_order_begins_the_pause_as_a_change_does_and_the_latest_counts() -> None:
    balance = Balance(BalanceConfig(mode="on"))
    now = feed(balance, rate=10.0, prompt=400, output=20, since=1000.0, seconds=600.0)
    balance.record_order(Ordered(now - 10, "d0", P, "because"))
    balance.record_change(now - 70)
    assert balance.look(Split(1, 3), CURVES, now).sentence.endswith("a role changed 10 s ago")
    assert balance.ordered is not None


def test_while_a_worker_changes_its_role_no_other_does() -> None:
    balance = Balance(BalanceConfig(mode="on"))
    now = feed(balance, rate=10.0, prompt=400, output=20, since=1000.0, seconds=600.0)
    told = balance.look(Split(1, 3), CURVES, now, "d0 is becoming a prefill worker")
    assert told.role is None
    assert told.sentence.endswith("; but d0 is becoming a prefill worker")
    served = balance.look(Split(3, 1), CURVES, now, "d0 is becoming a prefill worker")
    assert "d0" not in served.sentence, "nothing was to change anyway"


def test_modes_look_and_act() -> None:
    kinds = {mode: Balance(BalanceConfig(mode=mode)) for mode in MODES}
    assert [balance.on for balance in kinds.values()] == [False, True, True]
    assert [balance.acts for balance in kinds.values()] == [False, False, True]

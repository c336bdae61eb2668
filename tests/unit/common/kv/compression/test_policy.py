"""When P compresses: what both sides must say, and what `auto` makes of measured rates."""

from __future__ import annotations

import pytest

from common.kv.compression.policy import (
    PEERS_MAX,
    PROBE_EVERY,
    SAMPLE_BYTES_MAX,
    SAMPLE_BYTES_MIN,
    CompressionChooser,
    Mode,
)

CODEC = 400e6
MIB = 1 << 20


def moved(chooser: CompressionChooser, rate: float, size: int = 4 * MIB, name: str = "d0") -> None:
    chooser.on_send_started(name, False, 10.0)
    chooser.on_send_ended(name, size, 10.0 + size / rate)


@pytest.mark.parametrize(
    ("mode", "fraction", "allowed", "expected", "reason"),
    [
        ("none", 0.25, True, False, ""),
        ("none", 0.25, False, False, ""),
        ("fp8", 0.25, True, True, "as configured"),
        ("fp8", 0.25, False, False, "d0 does not take it"),
        ("fp8", 0.0, True, False, "unknown layout"),
        ("auto", 0.25, True, False, ""),
        ("auto", 0.25, False, False, "d0 does not take it"),
        ("auto", 0.0, True, False, "unknown layout"),
    ],
)
def test_both_must_want_it(
    mode: Mode, fraction: float, allowed: bool, expected: bool, reason: str
) -> None:
    chooser = CompressionChooser(mode, fraction, CODEC)
    assert chooser.choose("d0", allowed) is expected
    given = chooser.pop_new_reason("d0")
    assert reason in given
    assert bool(reason) == bool(given)


@pytest.mark.parametrize(
    ("fraction", "link", "expected"),
    [(0.25, 200e6, True), (0.25, 230e6, False), (0.5, 110e6, True), (0.5, 130e6, False)],
)
def test_auto_compresses_where_a_fifth_of_the_time_is_saved(
    fraction: float, link: float, expected: bool
) -> None:
    chooser = CompressionChooser("auto", fraction, CODEC)
    moved(chooser, link)
    assert chooser.choose("d0", True) is expected
    assert f"the link moves {link / 1e6:.0f} MB/s, the codec 400 MB/s" in chooser.pop_new_reason(
        "d0"
    )
    assert chooser.pop_new_reason("d0") == "", "told once"
    chooser.choose("d0", True)
    assert chooser.pop_new_reason("d0") == "", "nothing changed"


def test_it_does_not_flip_with_noise_but_goes_back_when_nothing_is_saved() -> None:
    chooser = CompressionChooser("auto", 0.25, CODEC)
    moved(chooser, 200e6)
    assert chooser.choose("d0", True)
    for _ in range(20):
        moved(chooser, 280e6)
    assert chooser.choose("d0", True), "a share between 0.8 and 1 changes nothing"
    for _ in range(20):
        moved(chooser, 320e6)
    assert not chooser.choose("d0", True)
    for _ in range(20):
        moved(chooser, 280e6)
    assert not chooser.choose("d0", True)


def test_the_link_is_measured_again_while_it_compresses() -> None:
    chooser = CompressionChooser("auto", 0.25, CODEC)
    moved(chooser, 100e6)
    chosen = [chooser.choose("d0", True) for _ in range(3 * PROBE_EVERY)]
    assert chosen.count(False) == 3
    chooser.on_send_started("d0", True, 0.0)
    chooser.on_send_ended("d0", 8 * MIB, 0.001)
    assert chooser.choose("d0", True), "a compressed message is no sample of the link"


def test_only_what_tells_of_the_link_is_a_sample() -> None:
    chooser = CompressionChooser("auto", 0.25, CODEC)
    moved(chooser, 1e6, size=SAMPLE_BYTES_MIN - 1)
    chooser.on_send_started("d0", False, 0.0)
    chooser.on_send_started("d0", False, 0.0)
    chooser.on_send_ended("d0", 0, 5.0)
    chooser.on_send_ended("d0", 4 * MIB, 9.0)
    assert not chooser.choose("d0", True), "too small, and one that failed"
    for at in range(3):
        chooser.on_send_started("d0", False, float(at))
    chooser.on_send_ended("d0", SAMPLE_BYTES_MAX, 0.1)
    assert chooser.choose("d0", True), "traffic without a pause is measured as it goes"


def test_each_peer_has_its_own_link_and_their_number_is_bounded() -> None:
    chooser = CompressionChooser("auto", 0.25, CODEC)
    moved(chooser, 100e6, name="d0")
    moved(chooser, 900e6, name="d1")
    assert (chooser.choose("d0", True), chooser.choose("d1", True)) == (True, False)
    for at in range(PEERS_MAX):
        chooser.choose(f"other{at}", True)
    assert not chooser.choose("d0", True), "forgotten: measured anew"
    chooser.on_send_ended("gone", 5, 0.0)
    assert chooser.pop_new_reason("gone") == ""

"""What a peer is scored by."""

from __future__ import annotations

import os

import pytest

from loadtest.bench.sample import Sample
from loadtest.peers.command import main
from loadtest.peers.measure import cpu_seconds, recovery


def sample(due: float, first: float | None, error: str = "") -> Sample:
    return Sample("", 5, 5, due, sent=due, first=first, done=first, error=error)


def test_recovery_is_of_what_was_sent_after_the_fault_and_ended_well() -> None:
    samples = [
        sample(1.0, 10.2),
        sample(10.0, 10.5, "cut"),
        sample(10.5, 13.0),
        sample(10.6, 12.0),
        sample(11.0, None),
    ]
    assert recovery(samples, 10.0) == 2.0
    assert recovery(samples[:2], 10.0) is None


def test_cpu_is_of_the_whole_tree_and_of_nobody_who_is_gone() -> None:
    assert cpu_seconds(os.getpid())[os.getpid()] > 0
    assert cpu_seconds(0) == {}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--endpoint", "a=http://x"], "two are the least"),
        (["--endpoint", "a"], "'a' is not NAME=VALUE"),
        (["--endpoint", "a=x", "--endpoint", "b=y", "--fault", "c=true"], "is named c"),
        (["--endpoint", "a=x", "--endpoint", "b=y", "--pid", "a=me"], "no process id"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert why in capsys.readouterr().err

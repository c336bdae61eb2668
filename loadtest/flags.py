"""Types of command line arguments."""

from __future__ import annotations

import argparse


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def counts(text: str) -> list[int]:
    return [count(part) for part in text.split(",")]

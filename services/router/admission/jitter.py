"""Spread without randomness: the same core gives the same sequence (SplitMix64, Steele et al.)."""

from __future__ import annotations

MASK = (1 << 64) - 1


class Jitter:
    def __init__(self, seed: int) -> None:
        self._state = seed & MASK

    def next(self) -> float:
        """In [0, 1)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return (mixed ^ (mixed >> 31)) / (1 << 64)

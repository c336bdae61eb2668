"""What every part of a world shares: virtual time, the seed's randomness, the trace."""

from __future__ import annotations

import hashlib
import random

from loadtest.capacity.virtual_time import VirtualTime


class PromiseBrokenError(AssertionError):
    """A promise that this seed broke."""


class Clock(VirtualTime):
    """`trace`: called with each line when somebody reads along. `quiet_since`: when the last fault
    ended, infinity while one lasts."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.lines: list[str] | None = None
        self._digest = hashlib.blake2b(digest_size=8)

    def note(self, line: str) -> None:
        """One thing that happened; all of them together are the seed's hash."""
        self._digest.update(f"{self.now:.9f} {line}\n".encode())
        if self.lines is not None:
            self.lines.append(f"{self.now:9.4f} {line}")

    def hash(self) -> str:
        return self._digest.hexdigest()

    def violate(self, sentence: str) -> None:
        raise PromiseBrokenError(f"at {self.now:.3f} s: {sentence}")

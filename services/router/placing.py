"""What placement remembers between requests: the policy in force, who has which prefix, which pairs
may hand over, and how the governor decided last. Only `core*.py` change it."""

from __future__ import annotations

import msgspec

from services.router.pairs import Pairs
from services.router.placement_types import Ask, Policy, Rules
from services.router.policies.registry import POLICIES
from services.router.prefixes import Prefixes
from services.router.settings import Settings

SIZES = 32
PROBE_EVERY = 64


class Placing:
    """`policy`, `rules`: may be replaced live. `serial`: number of the last placement."""

    def __init__(self, settings: Settings) -> None:
        self.policy: Policy = POLICIES[settings.policy]
        self.rules = Rules(settings.mode, settings.remote_prefill)
        self.prefixes = Prefixes()
        self.pairs = Pairs()
        self.serial = 0
        self._was_remote: list[bool | None] = [None] * SIZES
        self._locals = [0] * SIZES

    @property
    def all_local(self) -> bool:
        """No prompt is handed over, whoever is there."""
        return self.rules.mode != "disaggregated" or self.rules.remote_prefill == "never"

    def choose(self, policy: str, remote_prefill: str) -> None:
        """Empty: as it is."""
        if policy:
            self.policy = POLICIES[policy]
        if remote_prefill:
            self.rules = msgspec.convert((self.rules.mode, remote_prefill), Rules)
            self._was_remote = [None] * SIZES

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def was_remote(self, ask: Ask) -> bool | None:
        """How the governor decided the last prompt of this size, when it had the choice."""
        return self._was_remote[_size(ask)]

    def probes(self, ask: Ask) -> bool:
        """It is time to measure a remote prefill of this size again."""
        return self._locals[_size(ask)] >= PROBE_EVERY

    def decided(self, ask: Ask, *, remote: bool, weighed: bool) -> None:
        """A prompt was placed; `weighed`: by the governor's free choice."""
        size = _size(ask)
        if weighed:
            self._was_remote[size] = remote
            self._locals[size] += not remote
        if remote:
            self._locals[size] = 0

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.prefixes.check_invariants()
        self.pairs.check_invariants()


def _size(ask: Ask) -> int:
    """Sizes are powers of two: what holds for a prompt holds for one of nearly its length."""
    return min(SIZES - 1, ask.prompt_tokens.bit_length())

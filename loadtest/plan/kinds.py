"""The kinds of workers that a plan may use: cards of two generations, or GPUs and CPUs. Each has a
profile of its own and a price."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from common.errors import ConfigError
from loadtest.capacity.profile import Profile
from loadtest.capacity.profile import load as load_profile

KINDS_MAX = 4
PROFILE, PRICE = "--profile", "--price"


class Kind(NamedTuple):
    """`name` is empty if there is one kind. `price`: of one worker for an hour."""

    profile: Profile
    name: str = ""
    price: float = 1.0


class Pair(NamedTuple):
    """The kinds of a fleet's prefill and decode workers; equal in a replicated fleet."""

    prefill: Kind
    decode: Kind

    @property
    def profiles(self) -> tuple[Profile, Profile]:
        """KV goes from the one kind to the other at the rate of the slower of the two."""
        ours, theirs = self.prefill.profile, self.decode.profile
        rate = min(ours.bandwidth_bytes_per_s, theirs.bandwidth_bytes_per_s)
        return replace(ours, bandwidth_bytes_per_s=rate), theirs


def read(paths: Sequence[Path], prices: Sequence[float]) -> list[Kind]:
    """A kind for each profile, named as its file if there are several. Raises ConfigError."""
    if not paths:
        raise ConfigError(PROFILE, "say which workers: a file that baton profile wrote")
    if len(paths) > KINDS_MAX:
        raise ConfigError(PROFILE, f"{len(paths)} kinds of workers; {KINDS_MAX} are the most")
    if prices and len(prices) != len(paths):
        sentence = f"{len(prices)} prices for {len(paths)} profiles; give one for each, in order"
        raise ConfigError(PRICE, sentence)
    names = [path.stem for path in paths] if len(paths) > 1 else [""]
    if len(set(names)) < len(names):
        raise ConfigError(PROFILE, f"two kinds are called the same: {', '.join(names)}")
    profiles = [load_profile(path) for path in paths]
    block = profiles[0].block_tokens
    alike = [in_blocks(profile, block, path) for profile, path in zip(profiles, paths, strict=True)]
    return [
        Kind(profile, name, price)
        for profile, name, price in zip(alike, names, prices or [1.0] * len(names), strict=True)
    ]


def in_blocks(profile: Profile, tokens: int, path: Path) -> Profile:
    """The same memory in blocks of so many tokens, in which a plan counts the KV of all kinds.
    Raises ConfigError for cache groups, whose blocks have a meaning."""
    if profile.block_tokens == tokens:
        return profile
    if profile.kv_groups:
        sentence = (
            f"{path}: its cache groups have blocks of {profile.block_tokens} tokens and those of "
            f"the first kind {tokens}; start both with one block_size and profile them again"
        )
        raise ConfigError(PROFILE, sentence)
    blocks = max(1, profile.kv_blocks * profile.block_tokens // tokens)
    return replace(profile, block_tokens=tokens, kv_blocks=blocks)

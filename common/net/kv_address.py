"""A worker's `kv_address`: `host:port` of the UCX listener of each of its ranks, in order."""

from __future__ import annotations

import math

SEPARATOR = ","


def rank_addresses(kv_address: str) -> list[str]:
    return kv_address.split(SEPARATOR)


def joined_addresses(ranks: list[str]) -> str:
    return SEPARATOR.join(ranks)


def address_of(kv_address: str, rank: int) -> str:
    """The address of one rank. Raises ValueError when there is none."""
    addresses = rank_addresses(kv_address)
    if rank >= len(addresses):
        raise ValueError(f"{kv_address} names {len(addresses)} ranks, and this is rank {rank}")
    return addresses[rank]


def parts_between(ours: str, theirs: str) -> int:
    """Into how many parts KV is cut on its way between these two workers, so that each part is on
    one rank at both ends; 1 if each has as many ranks as the other."""
    return parts_of_ranks(len(rank_addresses(ours)), len(rank_addresses(theirs)))


def parts_of_ranks(ranks: int, others: int) -> int:
    """The same, by the numbers of their ranks."""
    return 1 if ranks == others else math.lcm(ranks, others)

"""The identity of a daemon on the wire, its name and its incarnation as one string, and the key of
an attempt.

The name is the daemon's name in the fleet file. The incarnation is new at every start of its
process and never holds the separator. ZeroMQ routes by the identity's bytes, so a daemon that
starts again is another peer.
"""

from __future__ import annotations

SEPARATOR = "|"
PULL, PULL_AGAIN = "#pull", "#pull2"
COPY = "#copy"
PART = "#part"

AttemptKey = tuple[str, int]
"""A request's id and the number of the attempt, from 1; the same in every process."""


def identity_of(name: str, incarnation: str) -> str:
    """`name|incarnation`."""
    return f"{name}{SEPARATOR}{incarnation}"


def name_of(identity: str) -> str:
    """The name in an identity; empty where there is no separator."""
    return identity.rpartition(SEPARATOR)[0]


def split_identity(identity: str) -> tuple[str, str]:
    """Name and incarnation; the name is empty where there is no separator."""
    name, _, incarnation = identity.rpartition(SEPARATOR)
    return name, incarnation


def pull_key(key: AttemptKey, *, again: bool = False) -> AttemptKey:
    """What the KV plane calls the pull of an attempt, beside the attempt's handoff. `again`: the
    second one, because a key that was refused is not asked for again."""
    return key[0] + (PULL_AGAIN if again else PULL), key[1]


def attempt_of_pull(key: AttemptKey) -> AttemptKey:
    """The attempt of a pull, or of a handoff."""
    return key[0].removesuffix(PULL).removesuffix(PULL_AGAIN), key[1]


def part_key(key: AttemptKey, part: int) -> AttemptKey:
    """What the KV plane calls one part of an attempt's handoff (`Ticket.parts`)."""
    return f"{key[0]}{PART}{part}", key[1]


def part_number(request_id: str) -> int:
    """Of a `part_key`. Raises ValueError if it is none."""
    return int(request_id.rpartition(PART)[2])


def attempt_of_part(key: AttemptKey) -> AttemptKey:
    """The attempt of a part, or of what is no part."""
    whole, separator, _ = key[0].rpartition(PART)
    return (whole, key[1]) if separator else key


def copy_key(identity: str, number: int) -> AttemptKey:
    """What the KV plane calls the pull of blocks that were offered, which belong to no attempt.
    `identity`: of the worker that pulls. `number`: of its pulls of this kind."""
    return identity + COPY, number


def is_copy(request_id: str) -> bool:
    """Whether it is that of a `copy_key`."""
    return request_id.endswith(COPY)


def is_pull(request_id: str) -> bool:
    return request_id.endswith((PULL, PULL_AGAIN))
